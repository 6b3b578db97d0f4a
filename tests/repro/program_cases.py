"""Programs to write scripts for: chains of calls, related results, and illegal programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from repro_cases import Entry, spec

from corpus.case import Call, Case, Data, Group, Relation, Tensor, World
from corpus.meaning import check

X = spec((4,))
OUT = spec((4,), payload="poison")
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
MOVED = ("wrong result", "input changed", "neighbours changed")


def chain(*calls: Call, world: int = 2, groups: tuple[Group, ...] = (), **tensors: object) -> Case:
    """A program over named tensors, given as specs or as tensors."""
    made = tuple(
        replace(each, name=name) if isinstance(each, Tensor) else Tensor(name, each)  # type: ignore[arg-type]
        for name, each in tensors.items()
    )
    case = Case("gloo", World(world, groups), made, calls)
    check(case)
    return case


def chains() -> Iterator[Entry]:
    """Every way in which a call builds on an earlier one."""

    def entry(name: str, case: Case, *kinds: str) -> Entry:
        return Entry(f"chain {name}", case, kinds or MOVED, calls=tuple(range(len(case.program))))

    yield entry("of sums", chain(SUM, SUM, world=3, x=X))
    moved = (
        SUM,
        Call("all_gather_into_tensor", ("x",), ("y",)),
        Call("broadcast", ("y",), ("y",), root=1),
        Call("reduce_scatter_tensor", ("y",), ("z",), reduce_op="max"),
    )
    yield entry("through collectives", chain(*moved, x=X, y=spec((8,), payload="poison"), z=OUT))
    local = (SUM, Call("copy", ("x",), ("y",)), Call("double", ("x",), ("x",)), Call("negate", ("y",), ("y",)))
    yield entry("of local computations", chain(*local, x=X, y=OUT))
    lists = (
        Call("all_gather", ("x",), ("y0", "y1")),
        Call("all_to_all", ("y0", "y1"), ("z0", "z1")),
        Call("reduce_scatter", ("z0", "z1"), ("x",), reduce_op="sum"),
        Call("scatter", ("y0", "y1"), ("z1",), root=1),
        Call("gather", ("x",), ("z0", "y1"), root=0),
    )
    yield entry("of lists", chain(*lists, x=X, y0=OUT, y1=OUT, z0=OUT, z1=OUT))
    again = (
        Call("all_gather", ("x",), ("y0", "y1")),
        Call("all_gather", ("z",), ("y0", "y1")),
        Call("broadcast", ("x",), ("x",), root=0),
    )
    yield entry("into the same outputs", chain(*again, x=X, z=X, y0=OUT, y1=OUT))
    groups = (Group("g0", (2, 0)), Group("g1", (2, 0)), Group("g2", (1, 2)))
    parts = (
        Call("all_gather_into_tensor", ("x",), ("y",), group="g0"),
        Call("broadcast", ("x",), ("x",), group="g1", root=0),
        Call("all_reduce", ("x",), ("x",), group="g2", reduce_op="sum"),
        Call("send_recv", ("x",), ("x_2",), root=2, peer=1),
        Call("reduce", ("x_2",), ("x_2",), group="g2", root=1, reduce_op="min"),
    )
    case = chain(*parts, world=3, groups=groups, x=X, y=spec((8,), payload="poison"), x_2=X)
    yield entry("in permuted and twin groups", case)
    flying = replace(SUM, async_op=True, wait=3)
    waits = (
        flying,
        Call("send_recv", ("y",), ("z",), root=1, peer=0, async_op=True, wait=2),
        replace(flying, inputs=("x_2",), outputs=("x_2",), wait=3),
        Call("barrier", late=1),
        Call("broadcast", ("x",), ("x",), root=1, late=0),
    )
    yield entry("of works", chain(*waits, x=X, x_2=X, y=X, z=OUT))
    view = spec((3,), strides=(2,), before=1)
    views = (
        Call("all_reduce", ("x",), ("x",), reduce_op="sum"),
        Call("copy", ("x",), ("y",)),
        Call("broadcast", ("y",), ("y",), root=1),
    )
    yield entry("of views", chain(*views, x=view, y=replace(view, payload="poison")))
    stacked = (
        Call("copy", ("x",), ("y",)),
        Call("all_gather_into_tensor", ("y",), ("z",)),
        Call("reduce_scatter_tensor", ("z",), ("x",), reduce_op="sum"),
        Call("all_to_all_single", ("z",), ("z_2",), splits=((4, 0), (1, 3))),
    )
    pile = spec((4, 3), payload="poison")
    sizes = Tensor("z_2", spec((5, 3), payload="poison"), ((1, spec((3, 3), payload="poison")),))
    yield entry("of other shapes", chain(*stacked, x=spec((2, 3)), y=spec((2, 3)), z=pile, z_2=sizes))
    wide = (Call("broadcast", ("x",), ("x",), root=0), Call("all_reduce", ("x",), ("x",), reduce_op="sum"))
    for dtype in ("float32", "bfloat16", "complex64"):
        yield entry(f"to many sums of {dtype}", chain(*wide, world=3, x=spec((4,), dtype, payload="wide")))
    product = (replace(SUM, reduce_op="product"), replace(SUM, reduce_op="avg"))
    yield entry("of products", chain(*product, world=3, x=spec((3,), "float64")))
    yield entry("of integers", chain(SUM, product[0], world=3, x=spec((4,), "int8", "wide")))
    yield entry("that agrees", chain(SUM, Call("broadcast", ("x",), ("x",), root=1), x=X), "ranks disagree")
    yield entry("of many elements", chain(SUM, SUM, x=spec((40_000,))))


def related() -> Iterator[Entry]:
    """Data of other tensors, and relations between results."""
    long, whole = spec((6,)), spec((12,), payload="poison")
    both = (
        Call("all_gather_into_tensor", ("x",), ("y",)),
        Call("all_reduce", ("x_2",), ("x_2",), reduce_op="sum"),
        Call("all_reduce", ("x_3",), ("x_3",), reduce_op="sum"),
    )
    case = chain(
        *both,
        x=long,
        y=whole,
        x_2=Tensor("x_2", spec((2, 2)), data=Data("x", start=1, shift=1)),
        x_3=Tensor("x_3", spec((4,)), data=Data("x", start=1, exponent=1)),
    )
    yield Entry("data of another tensor", case, calls=(0, 1, 2))
    prefix = chain(
        replace(SUM, inputs=("x",), outputs=("x",)),
        replace(SUM, inputs=("x_2",), outputs=("x_2",)),
        x=spec((6,), payload="wide"),
        x_2=Tensor("x_2", spec((4,), payload="wide"), data=Data("x")),
    )
    prefix = replace(prefix, relations=(Relation("prefix", ("x_2",), ("x",)),))
    yield Entry("related prefix", prefix, ("prefix differs",))
    doubled = chain(
        replace(SUM, inputs=("x",), outputs=("x",)),
        replace(SUM, inputs=("x_2",), outputs=("x_2",)),
        x=X,
        x_2=Tensor("x_2", X, data=Data("x", exponent=1)),
    )
    doubled = replace(doubled, relations=(Relation("scaled", ("x_2",), ("x",), exponent=1),))
    yield Entry("related multiples", doubled, ("scaled differs", "wrong result"), calls=(1,))
    once = Call("reduce", ("x",), ("x",), root=1, reduce_op="sum")
    rooted = chain(once, replace(once, inputs=("x_2",), outputs=("x_2",)), x=X, x_2=Tensor("x_2", X, data=Data("x")))
    rooted = replace(rooted, relations=(Relation("repeat", ("x",), ("x_2",)),))
    yield Entry("related at the root", rooted, ("repeat differs",))
    parts = chain(
        Call("all_gather", ("x",), ("y0", "y1")),
        Call("all_gather_into_tensor", ("x",), ("y",)),
        Call("broadcast", ("x",), ("x",), root=0),
        x=X,
        y0=OUT,
        y1=OUT,
        y=spec((8,), payload="poison"),
    )
    parts = replace(parts, relations=(Relation("whole", ("y0", "y1"), ("y",)),))
    yield Entry("related parts", parts, ("whole differs",))


def illegal(what: str, case: Case, *programs: tuple[int, tuple[Call, ...]]) -> Case:
    """The case with something wrong with it."""
    made = replace(case, illegal=what, programs=programs)
    check(made)
    return made


def disagreeing(first: str = "float32", second: str = "int32", **call: object) -> Case:
    """An all_reduce of two ranks that disagree on the dtype."""
    x = Tensor("x", spec((4,), first), ((1, spec((4,), second)),))
    case = Case("gloo", World(2), (x,), (replace(SUM, **call),), illegal="dtype")  # type: ignore[arg-type]
    check(case)
    return case


def illegals() -> Iterator[Entry]:
    """Illegal programs, and every way to get them wrong."""
    bad = ("silently accepted", "raised on some ranks", "hang", "crash")
    worse = ("tensors changed although it raised", "group unusable afterwards")
    two = chain(SUM, replace(SUM, inputs=("y",), outputs=("y",)), x=X, y=X)
    yield Entry("illegal dtype", disagreeing(), bad)
    yield Entry("illegal dtype, and after it", disagreeing(), (bad[0], worse[1]))
    yield Entry("illegal dtype, unusable", disagreeing(), worse[1:])
    yield Entry("illegal dtype, changed", disagreeing(), worse[:1])
    root = chain(Call("broadcast", ("x",), ("x",), root=0), x=X)
    other = (replace(root.program[0], root=1),)
    yield Entry("illegal root", illegal("root", root, (1, other)), bad)
    turned = two.program[::-1]
    yield Entry("illegal order", illegal("order", two, (0, turned)), bad)
    yield Entry("illegal count", illegal("count", two, (1, two.program[:1])), bad)
    yield Entry("illegal count of nothing", illegal("count", chain(SUM, x=X), (1, ())), bad)
    lists = chain(Call("all_gather", ("x",), ("y0", "y1")), x=X, y0=OUT, y1=OUT)
    same = replace(lists, tensors=lists.tensors[:2], program=(replace(lists.program[0], outputs=("y0", "y0")),))
    yield Entry("illegal outputs", illegal("aliased outputs", same), worse)
