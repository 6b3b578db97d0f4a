"""The tensors that a call takes: how many, and which shape each has on each rank.

Everything follows from one chunk, the shape that a rank contributes or receives, and from how many of its rows (of
dimension 0) each rank has for each other one.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from corpus.contract import OpContract
from strategies.boundaries import Role

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = tuple[tuple[Shape, ...], ...]
"""By tensor, then by group rank."""

MUTATING: Final = frozenset({"all_reduce", "broadcast", "reduce"})
"""Ops that a contract may have in place."""
WHOLE: Final = frozenset({"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"})
GATHERING: Final = frozenset({"all_gather", "gather"})
SCATTERING: Final = frozenset({"reduce_scatter", "scatter"})
LISTS: Final = GATHERING | SCATTERING | {"all_to_all"}
PLAIN_INPUT: Final = MUTATING | GATHERING | {"all_gather_into_tensor", "send_recv"}
"""Ops whose one input is the chunk itself, whatever the number of ranks."""

FORMS: Final = ("joined",) * 12 + ("stacked",) * 4
"""How the larger tensor of a WHOLE op holds its chunks: along dimension 0, or, by contract, along a new one."""
PATTERNS: Final = ("even",) * 10 + ("ragged",) * 3 + ("silent", "deaf", "paired")
"""How many rows each rank sends to each: all; another number each; all but the last rank, who sends none; all but to
the last rank, who receives none; only to one partner."""


def role(op: str) -> Role:
    """What the size of a call counts."""
    return "whole" if op in WHOLE else "list" if op in LISTS else "one"


def in_place(op: str, contract: OpContract) -> bool:
    """Whether the inputs of a call are its outputs."""
    return op in MUTATING and contract.in_place and not contract.returned


def takes_list(op: str) -> bool:
    """Whether the inputs of a call are a list, one tensor a rank."""
    return op in SCATTERING or op == "all_to_all"


def gives_list(op: str) -> bool:
    """Whether the outputs of a call are a list, one tensor a rank."""
    return op in GATHERING or op == "all_to_all"


def tensor_count(op: str, contract: OpContract, ranks: int) -> int:
    """How many tensors a rank holds for a call, each no larger than the call's size."""
    if op in LISTS:
        return 2 * ranks if op == "all_to_all" else ranks + 1
    return 1 if in_place(op, contract) else 2


def rows(pattern: str, sender: int, receiver: int, ranks: int, most: int) -> int:
    """Rows that a group rank sends to another, at most `most`."""
    if pattern == "ragged":
        return most - (sender + 2 * receiver) % (most + 1)
    silent = {
        "even": False,
        "silent": sender == ranks - 1,
        "deaf": receiver == ranks - 1,
        "paired": (sender + receiver) % ranks != 0,
    }
    return 0 if silent[pattern] else most


def split_matrix(pattern: str, ranks: int, most: int) -> tuple[tuple[int, ...], ...]:
    """The rows that each group rank sends to each."""
    return tuple(tuple(rows(pattern, me, other, ranks, most) for other in range(ranks)) for me in range(ranks))


def shapes(op: str, chunk: Shape, ranks: int, form: str, pattern: str) -> tuple[Shapes, Shapes]:
    """Shapes of the inputs and of the outputs of a call in a group of `ranks`.

    `form` is for WHOLE ops. `pattern` is for lists and all_to_all_single; it needs a chunk with dimensions.
    """
    everyone = range(ranks)

    def part(sender: int, receiver: int) -> Shape:
        return chunk if not chunk else (rows(pattern, sender, receiver, ranks, chunk[0]), *chunk[1:])

    if op in GATHERING:
        return (tuple(part(me, 0) for me in everyone),), tuple((part(place, 0),) * ranks for place in everyone)
    if op in SCATTERING:
        return tuple((part(0, place),) * ranks for place in everyone), (tuple(part(0, me) for me in everyone),)
    if op == "all_to_all":
        sent = tuple(tuple(part(me, place) for me in everyone) for place in everyone)
        return sent, tuple(tuple(part(place, me) for me in everyone) for place in everyone)
    if op == "all_to_all_single":
        matrix = split_matrix(pattern, ranks, chunk[0])
        given = tuple((sum(matrix[me]), *chunk[1:]) for me in everyone)
        return (given,), (tuple((sum(row[me] for row in matrix), *chunk[1:]) for me in everyone),)
    small, large = ((chunk,) * ranks,), (((_whole(chunk, ranks, form)),) * ranks,)
    if op == "all_gather_into_tensor":
        return small, large
    return (large, small) if op == "reduce_scatter_tensor" else (small, small)


def _whole(chunk: Shape, ranks: int, form: str) -> Shape:
    if form == "stacked" or not chunk:
        return (ranks, *chunk)
    return (ranks * chunk[0], *chunk[1:])
