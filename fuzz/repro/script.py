"""The text of `repro.py`: a failing case as a short program that starts its own ranks and needs nothing of ours."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from corpus.case import Case
from corpus.dtypes import DTYPES, Kind
from corpus.naming import parse
from fuzz.repro.body import Body
from fuzz.repro.chain import Chain, chained
from fuzz.repro.code import ReproError, fold
from fuzz.repro.data import has_specials, simplified
from fuzz.repro.dialects import Dialect, dialect
from fuzz.repro.generator import helpers
from fuzz.repro.illegal import Illegal
from fuzz.repro.program import Program

DEADLINE = 30
"""Seconds that a rank may take in a script, for small tensors."""

COMPILING = 300
"""Seconds more for a program that is compiled."""

SMALL = 64
"""Elements up to which a whole tensor is printed."""


def script(
    case: Case,
    failures: Sequence[Mapping[str, Any]],
    *,
    title: str,
    versions: Sequence[tuple[str, str]] = (),
    faithful: bool = False,
    written_by: Dialect | None = None,
    repeats: int = 1,
) -> str:
    """Return the text of `repro.py` for a failing case.

    `failures` are `Failure.to_json()` dictionaries, the primary one first; the script checks for every kind among them.
    Long tensors get simple data of the same kind; with `faithful` they get exactly the case's, by a longer script: for
    a bug that the simple data does not show. `written_by` says how a library's calls are written, if its name does not.

    Raises:
        ReproError: this version cannot write the case as a script.
    """
    return "\n".join(
        lines(
            case,
            failures,
            title=title,
            versions=versions,
            faithful=faithful,
            written_by=written_by,
            repeats=repeats,
        )
    )


def lines(
    case: Case,
    failures: Sequence[Mapping[str, Any]],
    *,
    title: str,
    versions: Sequence[tuple[str, str]],
    faithful: bool,
    written_by: Dialect | None,
    repeats: int,
    file: str = "repro.py",
    last: Sequence[str] = (),
    imports: Sequence[str] = (),
) -> list[str]:
    """The lines of a script called `file`, with `last` before its end and `imports` among its imports."""
    writer = written_by or dialect(parse(case.backend).what)
    _refuse(case, writer)
    told_of, failures = failures, _seen(failures)
    relations = {f"{relation.name} differs" for relation in case.relations}
    # The sides of a relation differ by what other data would hide, and need no legal results beside them.
    related = bool(relations) and {str(failure["kind"]) for failure in failures} <= relations
    case = case if faithful or related else simplified(case)
    body = _program(case, failures, writer, faithful=faithful)
    tells = body.tells or repeats > 1
    cuda = any(spec.memory == "cuda" for _, spec in case.specs())
    code = [
        *writer.setup(case),
        "",
        *(helpers(body.data.generators, case.seed, case.world.size) if body.data.generators else ()),
        "",
        *body.makers,
        "",
        *body.run,
        "",
        *body.helpers,
        "",
        *(_check(case, body, simple=not faithful) if body.checks else ()),
        "",
        *(_TOLD.splitlines() if tells else ()),
        "",
        *writer.start(cuda=cuda, timeout=body.timeout, repeats=repeats),
        "",
        *last,
        "",
        'if __name__ == "__main__":',
        "    main()",
    ]
    code = [piece for line in code for piece in fold(line)]
    text = "\n".join(code)
    known = [*(name for name in _STANDARD if re.search(rf"\b{name}\.", text)), *imports]
    known = [name for name in known if f"import {name}" not in writer.imports(case)]
    specials = [name for name in ("inf", "nan") if re.search(rf"\b{name}\b", text)]
    return [
        *_docstring(case, told_of, title, versions, writer, file),
        "",
        *_spaced(
            [
                *(f"import {name}" for name in sorted(set(known))),
                *(["from datetime import timedelta"] if "timedelta(" in text else ()),
                *([f"from math import {', '.join(specials)}"] if specials else ()),
                *(["from multiprocessing import Process"] if "Process(" in text else ()),
                "",
                "import torch",
                *(["import torch.distributed as dist"] if re.search(r"\bdist\.", text) else ()),
                *writer.imports(case),
                "",
                f"WORLD = {case.world.size}",
                f"DEADLINE = {_deadline(case)}  # seconds: a rank that takes longer hangs",
                *body.constants,
                *code,
            ]
        ),
    ]


def _program(case: Case, failures: Sequence[Mapping[str, Any]], writer: Dialect, *, faithful: bool) -> Program:
    kinds: list[type[Illegal] | type[Chain] | type[Body]] = [Illegal, Chain, Body]
    fits = [case.illegal is not None, case.illegal is None and chained(case), True]
    return kinds[fits.index(True)](case, failures, writer, faithful=faithful)


_STANDARD = (
    *("contextlib", "faulthandler", "functools", "hashlib", "io", "itertools", "os", "signal", "subprocess", "sys"),
    *("tempfile", "threading", "time", "traceback"),
)
"""Modules of the standard library that scripts import where they use them."""

_SCHEMA = {"schema hides a write": "input changed", "schema hides an alias": "output aliases input"}
"""What a script shows of an operator whose schema says otherwise."""


def _seen(failures: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The failures that a script can show."""
    shown = [failure for failure in failures if not str(failure["kind"]).startswith("fake ")]
    if failures and not shown:
        raise ReproError(f"{failures[0]['kind']}: this version writes no fake tensors")
    return [{**failure, "kind": _SCHEMA.get(failure["kind"], failure["kind"])} for failure in shown]


def _refuse(case: Case, writer: Dialect) -> None:
    if case.mode not in writer.modes:
        raise ReproError(f"mode {case.mode}: this version writes {' and '.join(writer.modes)} programs only")
    if any(call.stream for call in case.program):
        raise ReproError("this version writes no streams")
    for tensor, spec in case.specs():
        if spec.memory not in ("cpu", "cuda"):
            raise ReproError(f"tensor {tensor.name}: this version writes no {spec.memory} memory")


def _deadline(case: Case) -> int:
    compiling = 0 if case.mode == "eager" else COMPILING
    return DEADLINE + compiling + case.memory() * case.world.size // 20_000_000


def _docstring(
    case: Case,
    failures: Sequence[Mapping[str, Any]],
    title: str,
    versions: Sequence[tuple[str, str]],
    writer: Dialect,
    file: str,
) -> list[str]:
    size = case.world.size
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    seen = ", ".join([*(f"{name} {version}" for name, version in versions), writer.library, ranks])
    said = dict.fromkeys(f"{failure['message']}" for failure in failures)
    promise = next((str(failure["promise"]) for failure in failures if failure.get("promise")), "")
    words = [*list(said)[:3], *([f"Promised: {promise}"] if promise else ()), f"Seen with {seen}."]
    if case.fault is not None and parse(case.backend).what != "vllm-model":
        words.append(f"It was seen with the seeded fault {case.fault!r}, which is not in this script.")
    paragraphs = [line for text in words for line in textwrap.wrap(_clean(text), 110)]
    return [
        f'"""{_clean(title)}',
        "",
        *paragraphs,
        "",
        *(f"    {command}" for command in writer.commands(size, file)),
        "",
        "Exit status: 1 the bug is there (or a rank crashed or hung), 0 it is not, 2 a rank raised something else.",
        '"""',
    ]


def _clean(text: str) -> str:
    """Text that can stand in a docstring."""
    line = " ".join(text.split())[:600]
    return "".join(c if c.isprintable() else "?" for c in line).replace("\\", "/").replace('"', "'")


def _check(case: Case, body: Program, *, simple: bool) -> list[str]:
    """The function that compares, prints and says whether something is wrong."""
    specials = has_specials(case, [tensor.name for tensor in case.tensors])
    dtypes = {spec.dtype for _, spec in case.specs()}
    opaque = any(DTYPES[dtype].kind is Kind.OPAQUE for dtype in dtypes)
    small = all(spec.storage_elements <= SMALL for _, spec in case.specs())
    same, before = "got == want", []
    if body.related and specials and len(dtypes) == 1 and not opaque:
        lazy = any(spec.layout.conj or spec.layout.neg for _, spec in case.specs())
        same = "(bits(got) == bits(want)) | (got != got) & (want != want)"
        before = _bits(dtypes.pop(), lazy=lazy)
    elif opaque or (body.bitwise and (specials or not simple) and len(dtypes) == 1):
        lazy = any(spec.layout.conj or spec.layout.neg for _, spec in case.specs())
        same, before = "bits(got) == bits(want)", _bits(dtypes.pop(), lazy=lazy)
    elif specials or not simple:
        same = "(got == want) | (got != got) & (want != want)"
    example = "expected, for example," if body.many else "expected"
    lines = [f"    right = {same}"]
    if body.many:
        lines = [
            "    right = torch.zeros(got.shape, dtype=torch.bool)",
            "    for want in legal:",
            f"        right |= {same}",
        ]
    if small:
        lines += [
            '    verdict = "right" if right.all() else "wrong"',
            "    observed, expected = got.tolist(), want.tolist()",
            '    print(f"rank {rank}: {what} is {verdict}\\n  observed {observed}\\n  '
            f'{example} {{expected}}", flush=True)',
            "    return not right.all()",
        ]
    else:
        lines += [
            "    wrong = (~right).reshape(-1).nonzero().reshape(-1)",
            '    print(f"rank {rank}: {what}: {len(wrong)} of {right.numel()} elements are wrong", flush=True)',
            "    for at in wrong[:4].tolist():",
            "        observed, expected = got.reshape(-1)[at].item(), want.reshape(-1)[at].item()",
            f'        print(f"  at {{at}}: observed {{observed}}, {example} {{expected}}", flush=True)',
            "    return len(wrong) > 0",
        ]
    return [
        *before,
        "",
        f"def check(rank, what, got, {'legal' if body.many else 'want'}):",
        '    """Compare exactly, print, and return whether it is wrong."""',
        *lines,
    ]


def _bits(name: str, *, lazy: bool) -> list[str]:
    dtype = DTYPES[name]
    dense = f"x{'.resolve_conj().resolve_neg()' if lazy else ''}.contiguous()"
    if dtype.itemsize == 16:
        dense, word = f"torch.view_as_real({dense})", 8
        tail = ".movedim(-1, 0)"
    else:
        word, tail = dtype.itemsize, ""
    integer = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[word]
    return [
        "def bits(x):",
        '    """The raw bits: every NaN and both zeros differ."""',
        f"    return {dense}.view(torch.{integer}){tail}",
        "",
    ]


_TOLD = '''
ROUNDS = itertools.count()


def told(rank, text):
    """What every rank says, which no collective has to tell."""
    store, number = dist.distributed_c10d._get_default_store(), next(ROUNDS)
    store.set(f"{number} {rank}", text)
    store.wait([f"{number} {r}" for r in range(WORLD)], timedelta(seconds=DEADLINE))
    return [store.get(f"{number} {r}").decode() for r in range(WORLD)]
'''


def _spaced(code: list[str]) -> list[str]:
    """Two blank lines before a function or the last block, at most one elsewhere, none at the ends."""
    kept: list[str] = []
    for line in code:
        if not line and (not kept or not kept[-1]):
            continue
        if kept and re.match(r"def |if __name__", line):
            while kept and not kept[-1]:
                kept.pop()
            kept += ["", ""]
        elif kept and kept[-1] == "" and line and _ends_function(kept) and not line.startswith(" "):
            kept.append("")
        kept.append(line)
    while kept and not kept[-1]:
        kept.pop()
    return [*kept, ""]


def _ends_function(kept: list[str]) -> bool:
    return len(kept) > 1 and kept[-2].startswith(" ")
