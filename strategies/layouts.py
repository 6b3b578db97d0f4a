"""Where a tensor's elements lie: every kind of view that torch makes, between memory that must not change.

A plan is drawn without looking at the shape, then applied to one. The number of choices never changes, so a plan
shrinks on its own, and one plan serves every tensor of a list and every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from hypothesis.strategies import DrawFn

from corpus.case import MAX_OVERLAPPING, Layout, TensorSpec, contiguous_strides
from corpus.dtypes import DTYPES, Kind
from strategies.choose import Choice

Shape: TypeAlias = tuple[int, ...]
Layouts: TypeAlias = Literal["any", "contiguous"]


@dataclass(frozen=True, slots=True)
class View:
    """A kind of view, and how much of it: the step, the padding, the row width, or which axis."""

    kind: str = "contiguous"
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A view with `before` and `after` elements around it that belong to somebody else."""

    view: View = View()
    before: int = 0
    after: int = 0


def _dense(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Strides of a dense tensor whose axes lie in memory in this order, outermost first."""
    inner = contiguous_strides(tuple(shape[axis] for axis in order))
    return tuple(inner[order.index(axis)] for axis in range(len(shape)))


def _step(shape: Shape, amount: int) -> Shape | None:
    """`base[::amount]`, along the first axis that has two elements."""
    strides = list(contiguous_strides(shape))
    for axis, extent in enumerate(shape):
        if extent > 1:
            strides[axis] *= amount
            return tuple(strides)
    return None


def _column(shape: Shape, amount: int) -> Shape | None:
    """`base[..., 0]` of a base with one more dimension, `amount` wide."""
    return tuple(stride * amount for stride in contiguous_strides(shape))


def _rows(shape: Shape, amount: int) -> Shape | None:
    """`base[:, :-amount]`: rows of a base that is `amount` wider."""
    if len(shape) < 2:
        return None
    return contiguous_strides((*shape[:-1], shape[-1] + amount))


def _transposed(shape: Shape, amount: int) -> Shape | None:
    """Axes that lie in memory in another order: all reversed, the last two swapped, or the first moved to the end."""
    axes = tuple(range(len(shape)))
    if len(axes) < 2:
        return None
    orders = (axes[::-1], (*axes[:-2], axes[-1], axes[-2]), (*axes[1:], axes[0]))
    return _dense(shape, orders[amount])


def _channels_last(shape: Shape, amount: int) -> Shape | None:
    """Axis 1 lies innermost, as in torch.channels_last."""
    axes = tuple(range(len(shape)))
    return _dense(shape, (axes[0], *axes[2:], axes[1])) if len(axes) > 2 else None


def _singleton(shape: Shape, amount: int) -> Shape | None:
    """Strides of axes with one element, which nobody may follow, are odd; the rest is contiguous."""
    if 1 not in shape:
        return None
    pairs = zip(shape, contiguous_strides(shape), strict=True)
    return tuple(amount if extent == 1 else stride for extent, stride in pairs)


def _expanded(shape: Shape, amount: int) -> Shape | None:
    """`base.expand(...)` along the first axis (0), or `base.unfold(...)`: windows that overlap (1)."""
    if amount and len(shape) > 1:
        return (*(1,) * len(shape),)
    strides = list(contiguous_strides((1, *shape[1:])))
    return (0, *strides[1:])


_STRIDES: Final[dict[str, Callable[[Shape, int], Shape | None]]] = {
    "step": _step,
    "column": _column,
    "rows": _rows,
    "transposed": _transposed,
    "channels_last": _channels_last,
    "singleton": _singleton,
    "expanded": _expanded,
}

_LAZY: Final = {"conj": (Kind.COMPLEX,), "neg": (Kind.FLOAT, Kind.SIGNED, Kind.COMPLEX)}
"""What torch's lazy bits are drawn on."""

_STRIDED: Final = (
    *(View("step", amount) for amount in (2, 2, 3, 5)),
    *(View("column", amount) for amount in (3, 2, 16, 129)),
    *(View("rows", amount) for amount in (1, 2, 3, 64)),
    *(View("transposed", amount) for amount in (0, 1, 2)),
    *(View("channels_last") for _ in range(2)),
    *(View("singleton", amount) for amount in (7, 0)),
    *(View("neg", amount) for amount in (0, 2)),
    *(View("conj", amount) for amount in (0, 0, 2, 2)),
)
_EXPANDED: Final = tuple(View("expanded", amount) for amount in (0, 1, 1))
"""Only inputs overlap themselves."""
_PLAIN: Final = View()
_STEP: Final = View("step", 2)
PLAIN: Final = Plan()
VIEWS: Final = (_PLAIN, *_STRIDED, *_EXPANDED)
"""Every view that is drawn, in shrinking order."""

_GUARDS: Final = (
    *((0, 0),) * 12,
    *((0, 1), (0, 16), (1, 0), (2, 1), (3, 0), (4, 4), (5, 3), (7, 64), (8, 0), (16, 16), (64, 64), (1, 1)),
)
"""Elements before and after a view, out of line with any vector width as often as in line."""


class Planner:
    """Draws plans for one use. With layouts "any" a fifth are views, so that more than a third of the calls see one."""

    def __init__(self, use: str, views: tuple[View, ...]) -> None:
        plain = (_PLAIN,) * (4 * len(views))
        self._views: dict[Layouts, Choice[View]] = {
            "any": Choice(f"view of {use}", plain + views),
            "contiguous": Choice(f"view of {use}", (_PLAIN,)),
        }
        self._guards = Choice(f"guards of {use}", _GUARDS)

    def draw(self, draw: DrawFn, layouts: Layouts) -> Plan:
        """Draw a plan."""
        view = self._views[layouts].draw(draw)
        before, after = self._guards.draw(draw)
        return Plan(view, before, after)


INPUTS: Final = Planner("inputs", _STRIDED + _EXPANDED)
OUTPUTS: Final = Planner("outputs", _STRIDED)


def lay_out(spec: TensorSpec, plan: Plan, *, room: int, writable: bool) -> TensorSpec:
    """Apply a plan to a contiguous tensor.

    A view that this shape, dtype or use has no place for becomes a stepped one, and what does not fit in `room`
    elements of base storage becomes contiguous without guards. A `writable` view does not overlap itself.
    """
    if plan == PLAIN:
        return spec
    for view in (plan.view, _STEP, _PLAIN):
        layout = _layout(view, plan, spec, writable=writable)
        if layout is not None:
            laid = replace(spec, layout=layout)
            if laid.storage_elements <= room:
                return laid
    return spec


def _layout(view: View, plan: Plan, spec: TensorSpec, *, writable: bool) -> Layout | None:
    if view.kind == "contiguous":
        return Layout(None, plan.before, plan.after)
    if view.kind in ("conj", "neg"):
        if DTYPES[spec.dtype].kind not in _LAZY[view.kind]:
            return None
        strides = _step(spec.shape, view.amount) if view.amount else None
        return Layout(strides, plan.before, plan.after, conj=view.kind == "conj", neg=view.kind == "neg")
    if view.kind == "expanded" and (writable or spec.numel > MAX_OVERLAPPING):
        return None
    strides = _STRIDES[view.kind](spec.shape, view.amount) if spec.shape else None
    return None if strides is None else Layout(strides, plan.before, plan.after)
