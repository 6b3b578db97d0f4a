"""A registered torch operator does what it says of itself: its schema's writes and aliases, its fake kernel's output.

A compiler believes both. A write that the schema hides lets it read an old value again, a fake of another stride makes
it generate code for memory that is laid out otherwise.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from corpus.case import Call, Case
from corpus.contract import Contract
from oracles.failure import SchemaFailure
from oracles.observation import Observation
from oracles.text import ranks_text

if TYPE_CHECKING:
    import torch

HIDDEN_WRITE = "schema hides a write"
HIDDEN_ALIAS = "schema hides an alias"


class Watch:
    """One call of an operator: `operator` is a `torch._ops.OpOverload`, `arguments` are its positional ones.

    Made before the call, told of what was returned right after it, and asked for its report when all calls are over.
    """

    def __init__(self, call: int, operator: Any, arguments: Sequence[Any]) -> None:
        self._call = call
        self._operator = operator
        self._arguments = tuple(arguments)
        self._given = list(_given(operator._schema, self._arguments))
        self._before = [_checksum(tensor) for _, tensor, _ in self._given]
        self._returned: list[torch.Tensor] = []
        self._odd: list[dict[str, str]] = []

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        """Look at the arguments and at what the operator returned, before another call changes them."""
        self._returned = list(tensors)
        for (name, tensor, info), before in zip(self._given, self._before, strict=True):
            if not (info is not None and info.is_write) and _checksum(tensor) != before:
                self._tell(HIDDEN_WRITE, f"argument {name} was written to")
        for place, tensor in enumerate(self._returned):
            self._alias(place, tensor)

    def _tell(self, kind: str, text: str) -> None:
        self._odd.append({"kind": kind, "text": text})

    def _alias(self, place: int, tensor: torch.Tensor) -> None:
        returns = self._operator._schema.returns
        info = returns[0 if len(returns) == 1 else place].alias_info if returns else None
        sharing = [(name, given) for name, one, given in self._given if _share(tensor, one)]
        names = set() if info is None else info.before_set
        if sharing and not any(given is not None and given.before_set & names for _, given in sharing):
            self._tell(HIDDEN_ALIAS, f"result {place} shares its storage with argument {sharing[0][0]}")

    def report(self) -> dict[str, Any]:
        """Return {"call", "schema" (its text), "odd": [{"kind", "text"}, ...]}, after running the fake kernel."""
        if self._returned:
            self._fake()
        return {"call": self._call, "schema": str(self._operator._schema), "odd": self._odd}

    def _fake(self) -> None:
        """Compare the fake kernel's results with the real ones; an operator without a fake has nothing to compare."""
        import torch
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            FakeTensorMode,
            UnsupportedOperatorException,
        )

        try:
            with FakeTensorMode() as mode:
                faked = self._operator(*(_faked(mode, argument) for argument in self._arguments))
        except (UnsupportedOperatorException, DataDependentOutputException, DynamicOutputShapeException):
            return
        except Exception as error:  # of whatever the fake raises we only say that it did
            said = next(iter(str(error).splitlines()), "")
            self._tell("fake raises", f"the fake raises {type(error).__name__}: {said}")
            return
        results = [faked] if isinstance(faked, torch.Tensor) else list(faked or ())
        if len(results) != len(self._returned):
            self._tell("fake shape differs", f"{len(results)} results of the fake, {len(self._returned)} real ones")
            return
        for place, (fake, real) in enumerate(zip(results, self._returned, strict=True)):
            for what, one, other in (
                ("shape", tuple(fake.shape), tuple(real.shape)),
                ("dtype", str(fake.dtype), str(real.dtype)),
                ("strides", _strides(fake), _strides(real)),
            ):
                # Of another shape the strides are others too.
                if one != other and not (what == "strides" and fake.shape != real.shape):
                    differs = "differ" if what == "strides" else "differs"
                    self._tell(f"fake {what} {differs}", f"result {place}: the fake's {what} {one}, the real {other}")


def prepare() -> None:
    """Run a fake once: torch imports hundreds of modules then, which takes seconds on a busy machine, so not in a case
    that has a deadline."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        torch.empty_like(mode.from_tensor(torch.ones(1)))


def _given(schema: Any, arguments: tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Name, tensor and alias annotation of every tensor among the arguments."""
    import torch

    for spec, argument in zip(schema.arguments, arguments, strict=False):
        if isinstance(argument, torch.Tensor):
            yield spec.name, argument, spec.alias_info
        elif isinstance(argument, (list, tuple)):
            for place, one in enumerate(argument):
                if isinstance(one, torch.Tensor):
                    yield f"{spec.name}[{place}]", one, spec.alias_info


def _checksum(tensor: torch.Tensor) -> int:
    """Of the logical elements, as stored."""
    import torch

    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # A tensor of one element or none is contiguous whatever its strides.
    flat = dense.as_strided((dense.numel(),), (1,))
    return zlib.crc32(flat.view(torch.uint8).cpu().numpy().data)


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    storages = one.untyped_storage(), other.untyped_storage()
    return all(storage.nbytes() for storage in storages) and storages[0].data_ptr() == storages[1].data_ptr()


def _faked(mode: Any, argument: Any) -> Any:
    import torch

    if isinstance(argument, torch.Tensor):
        return mode.from_tensor(argument)
    if isinstance(argument, (list, tuple)):
        return [_faked(mode, one) for one in argument]
    return argument


def _strides(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Strides that matter: None of a dimension in which there is nowhere to go, and of an empty tensor."""
    numel = tensor.numel()
    return tuple(
        stride if numel and extent > 1 else None for extent, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def observe(watches: Sequence[Watch]) -> dict[str, Any]:
    """Return {"calls": [...]}, the reports of the calls in which something is odd."""
    reports = [watch.report() for watch in watches]
    return {"calls": [report for report in reports if report["odd"]]}


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[SchemaFailure]:
    """One failure a call and kind, in the order of the program.

    A call that the contract lets reduce in place is not looked at: a person has asked for that by a flag.
    """
    found: dict[tuple[int, str], list[tuple[int, str, str]]] = {}
    for seen in observations:
        for report in seen.reports.get("schema", {}).get("calls", ()):
            if _in_place(case, contract, case.program[report["call"]], seen.rank):
                continue
            for odd in report["odd"]:
                entry = (seen.rank, odd["text"], report["schema"])
                found.setdefault((report["call"], odd["kind"]), []).append(entry)
    for (index, kind), entries in sorted(found.items()):
        op = case.program[index].op
        ranks = tuple(sorted({rank for rank, _, _ in entries}))
        _, text, schema = min(entries)
        yield SchemaFailure(
            kind,
            f"{op}: {kind} on {ranks_text(ranks)}: {text}; the operator is {schema}",
            call=index,
            op=op,
            ranks=ranks,
            promise=f"the operator's own schema and fake: {schema}",
            observed=text,
            legal=schema,
        )


def _in_place(case: Case, contract: Contract, call: Call, rank: int) -> bool:
    numel = case.tensor(call.inputs[0]).on(rank).numel if call.inputs else 0
    return call.op == "all_reduce" and 0 < contract.in_place_from.value <= numel
