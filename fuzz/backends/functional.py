"""torch.distributed's functional collectives over gloo, call by call or as one compiled graph.

The module's name has an underscore, and its documentation is its docstrings and RFC (pytorch#93173). They promise a new
tensor and an input that stays; of dtypes and reduce ops they say nothing, so the contract has those that gloo has.
"""

from __future__ import annotations

import importlib
import os
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from corpus.case import Call, Case
from corpus.contract import Contract, OpContract, Promise
from corpus.meaning import split_matrix
from fuzz.backends.base import Place
from fuzz.backends.c10d import C10d
from fuzz.backends.gloo import COMPLEX
from fuzz.backends.gloo import CONTRACT as GLOO

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

_COMPILATIONS = 1 << 16
"""How often one program may be compiled."""

_KEPT = 32
"""Compiled programs that a rank keeps: so many structures come again soon, above all while a failure is shrunk."""


class Functional(C10d):
    """torch.distributed._functional_collectives over gloo."""

    name = "functional"
    summary = "torch.distributed's functional collectives over gloo, eager and compiled by inductor"
    process_group = "gloo"
    modes: ClassVar[tuple[str, ...]] = ("eager", "compiled")

    def __init__(self) -> None:
        super().__init__()
        self._compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """The same promises in both modes: a compiled program means what it means call by call."""
        return CONTRACT

    def open(self, place: Place) -> None:
        """Join the default process group, and keep what will be compiled in the folder that this process runs in."""
        # It is the fork server's, and goes with it. Compiled code is shared by the ranks, and by the worlds to come.
        # torch may have set the variable itself, to a folder that is never removed.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path.cwd() / "inductor")
        # A pool of compiling processes would outlive a rank that is killed.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        super().open(place)

    def begin(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Callable[[], Tensors]:
        """Begin the call, and return what waits for its result."""
        import torch.distributed._functional_collectives as functional

        self._routes.append(f"functional:{call.op}")
        result = _collective(case, call, rank, self.group(case, call))(tensors[call.inputs[0]])
        wait: Any = functional.wait_tensor
        return lambda: {call.outputs[0]: wait(result)}

    def operator(self, case: Case, call: Call, rank: int, tensors: Tensors) -> tuple[Any, tuple[Any, ...]]:
        """The operator of `_c10d_functional` that a call goes through."""
        import torch

        operators = torch.ops._c10d_functional
        x, group, size = tensors[call.inputs[0]], self.group(case, call).group_name, len(case.ranks(call))
        arguments: dict[str, tuple[Any, ...]] = {
            "all_reduce": (call.reduce_op,),
            "broadcast": (call.root,),
            "all_gather_into_tensor": (size,),
            "reduce_scatter_tensor": (call.reduce_op, size),
            "all_to_all_single": _splits(case, call, rank) if call.op == "all_to_all_single" else (),
        }
        return getattr(operators, call.op).default, (x, *arguments[call.op], group)

    def run_program(self, case: Case, rank: int, tensors: Tensors) -> Tensors:
        """Run the program as one graph, compiled by inductor for any sizes.

        A call is waited for where its result is used, as the compiler sees it; `wait` and `late` mean nothing there.
        """
        names = tuple(name for name in tensors if case.tensor(name).on(rank).payload is not None)
        calls = tuple(call for call in case.program if rank in case.ranks(call))
        key = calls, names, case.world
        program = self._compiled.pop(key, None) or self._compile(case, calls, rank, names)
        self._compiled[key] = program
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        self._routes.append("functional:compiled")
        returned: Tensors = program(*(tensors[name] for name in names))
        return returned

    def _compile(self, case: Case, calls: tuple[Call, ...], rank: int, names: tuple[str, ...]) -> Callable[..., Any]:
        import torch

        # Names of groups, as the compiler cannot hold a group itself.
        steps = [
            (
                _COMPUTATIONS[call.op]
                if call.local
                else _collective(case, call, rank, self.group(case, call).group_name),
                call.inputs[0],
                call.outputs[0],
                call.local,
            )
            for call in calls
        ]

        def program(*given: torch.Tensor) -> dict[str, torch.Tensor]:
            tensors = dict(zip(names, given, strict=True))
            returned = {}
            for compute, x, output, local in steps:
                result = compute(tensors[x])
                if local:
                    tensors[output].copy_(result)
                else:
                    tensors[output] = returned[output] = result
            return returned

        # The compiler gives up on code that it has compiled for 8 dtypes, layouts and small sizes.
        config: Any = importlib.import_module("torch._dynamo.config")
        config.recompile_limit = config.accumulated_recompile_limit = _COMPILATIONS
        # To it, all our programs would be the same code.
        own = types.FunctionType(program.__code__.replace(), globals(), closure=program.__closure__)
        compiled: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=True)
        return compiled


def _splits(case: Case, call: Call, rank: int) -> tuple[list[int], list[int]]:
    """Rows that a rank (global) receives from each of the group's, and sends to each."""
    me = case.ranks(call).index(rank)
    matrix = split_matrix(case, call)
    return [row[me] for row in matrix], list(matrix[me])


def _collective(case: Case, call: Call, rank: int, group: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The call on this rank (global), as a function of its input that a compiler can look into."""
    import torch.distributed._functional_collectives as functional

    # Newer versions have another name for it, and warn at each call of the older one.
    gather: Any = getattr(functional, "all_gather_single", functional.all_gather_tensor)
    scatter: Any = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)
    reduce_op, root = call.reduce_op, call.root
    received, sent = _splits(case, call, rank) if call.splits is not None else (None, None)
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "all_reduce": lambda x: functional.all_reduce(x, str(reduce_op), group),
        "broadcast": lambda x: functional.broadcast(x, root, group),  # type: ignore[arg-type]
        "all_gather_into_tensor": lambda x: gather(x, 0, group),
        "reduce_scatter_tensor": lambda x: scatter(x, reduce_op, 0, group),
        "all_to_all_single": lambda x: functional.all_to_all_single(x, received, sent, group),
    }
    return calls[call.op]


_COMPUTATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copy": lambda x: x.clone(),
    "negate": lambda x: -x,
    "double": lambda x: x + x,
}


def _docstring(function: str, quote: str) -> str:
    return f'torch 2.13 docstring of _functional_collectives.{function}: "{quote}"'


_UNMODIFIED = "The input tensor is left unmodified."
_REDUCED = "Reduces the tensor data across all machines in such a way that all get the final result"

CONTRACT = Contract(
    backend="functional",
    ops={
        "all_reduce": OpContract(
            source=_docstring("all_reduce", f"{_REDUCED}. {_UNMODIFIED}"),
            reduce_ops=GLOO.ops["all_reduce"].reduce_ops,
            returned=True,
        ),
        "broadcast": OpContract(
            source=_docstring("broadcast", "Broadcasts the tensor to all processes in the given process group."),
            dtypes=GLOO.ops["broadcast"].dtypes,
            returned=True,
        ),
        "all_gather_into_tensor": OpContract(
            source=_docstring(
                "all_gather_single (= all_gather_tensor)",
                f"Gather tensor data across from all machines and concatenate over gather_dim. ... {_UNMODIFIED}",
            ),
            dtypes=GLOO.ops["all_gather_into_tensor"].dtypes,
            returned=True,
        ),
        "reduce_scatter_tensor": OpContract(
            source=_docstring(
                "reduce_scatter_single (= reduce_scatter_tensor)",
                f"{_REDUCED}, then scatter the results to corresponding ranks. {_UNMODIFIED}",
            ),
            reduce_ops=GLOO.ops["reduce_scatter_tensor"].reduce_ops,
            returned=True,
        ),
        "all_to_all_single": OpContract(
            source=_docstring(
                "all_to_all_single",
                "Then concatenate the received tensors from all the processes in the group and return single output "
                "tensor.",
            ),
            # Its splits are always explicit, and for those gloo refuses complex numbers, which nothing here promises.
            dtypes=tuple(name for name in GLOO.ops["all_to_all_single"].dtypes if name not in COMPLEX),
            returned=True,
            uneven=True,
        ),
    },
    views=Promise(
        "right or refused",
        "a view is a Tensor, and the docstrings of torch 2.13 ask for no layout: it works or has to be refused",
    ),
    agreement={"all_reduce": Promise(True, _docstring("all_reduce", f"{_REDUCED}."))},
    average=GLOO.average,
    nan_extremum=GLOO.nan_extremum,
    permuted_groups=GLOO.permuted_groups,
)
