"""Relations between results, as comparisons of their two sides."""

from __future__ import annotations

from corpus.case import Case, Relation
from corpus.dtypes import DTYPES
from corpus.meaning import writes
from fuzz.repro.code import picked
from fuzz.repro.program import Program


def related(program: Program) -> list[str]:
    """Lines that compare the sides of every relation that failed, on the ranks on which the calls wrote all of them."""
    kinds = {str(failure["kind"]) for failure in program.failures}
    failed = [relation for relation in program.case.relations if f"{relation.name} differs" in kinds]
    lines = []
    for relation in failed:
        ranks = [
            rank
            for rank in range(program.case.world.size)
            if all(_written(program.case, name, rank) for name in relation.left + relation.right)
        ]
        left, right = _sides(program, relation, ranks)
        word = "".join(c if c.isprintable() and c not in '"\\{}' else "?" for c in relation.name)
        what = f"{' and '.join(relation.left)} beside {' and '.join(relation.right)} ({word})"
        lines += program.guarded(ranks, [program.check(f'"{what}"', left, right)])
    return lines


def _written(case: Case, name: str, rank: int) -> bool:
    return any(name in writes(case, call, rank) for call in case.program)


def _sides(program: Program, relation: Relation, ranks: list[int]) -> tuple[str, str]:
    """Both sides as tensors of one shape: flat, and cut to the shorter one, where they have not the same anyway."""
    case, names = program.case, (relation.left, relation.right)
    specs = {name: [case.tensor(name).on(rank) for rank in ranks] for side in names for name in side}
    alike = len({spec.shape for each in specs.values() for spec in each}) == 1
    flat = not (alike and len(relation.left) == len(relation.right) == 1)
    sides = [_joined(program, side, flat=flat) for side in names]
    numels = {rank: [sum(case.tensor(name).on(rank).numel for name in side) for side in names] for rank in ranks}
    if any(left != right for left, right in numels.values()):
        shorter = picked({rank: str(min(both)) for rank, both in numels.items()})
        sides = [f"{side}[:{shorter}]" for side in sides]
    left, right = sides
    if relation.exponent:
        if DTYPES[specs[relation.left[0]][0].dtype].itemsize == 1:  # torch multiplies no eight bits
            left, right = f"{left}.float()", f"{right}.float()"
        right += f" * {2.0**relation.exponent}"
    return left, right


def _joined(program: Program, names: tuple[str, ...], *, flat: bool) -> str:
    """The elements of tensors, one tensor after another."""
    each = [program.tensors.variable(name) + (".reshape(-1)" if flat else "") for name in names]
    return each[0] if len(each) == 1 else f"torch.cat([{', '.join(each)}])"
