"""Cases as versioned JSON, both ways.

A case file is untrusted input: plain `json`, every field checked by name and type, sizes bounded before anything is
built. `CaseError` carries one line that says what is wrong and where.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from corpus.case import DEFAULT_MEMORY, Case, CaseError
from corpus.meaning import check

FORMAT = 1
MAX_TEXT = 4 << 20
"""Characters of a case file that are looked at (4 Mi)."""
MAX_ITEMS = 4096
"""Longest list in a case file."""


def _plain(value: Any) -> Any:
    """A frozen dataclass as dictionaries and lists, fields at their default left out."""
    if is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in fields(value)
            if field.init and not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _is_default(field: Field[Any], value: Any) -> bool:
    return field.default is not MISSING and type(value) is type(field.default) and bool(value == field.default)


def to_dict(case: Case) -> dict[str, Any]:
    """Return the case as JSON-able dictionaries and lists, with the format's version."""
    return {"cclfuzz": FORMAT, **_plain(case)}


def dumps(case: Case, indent: int | None = None) -> str:
    """Return the case as JSON text: the same case gives the same text."""
    separators = (",", ":") if indent is None else None
    return json.dumps(to_dict(case), indent=indent, separators=separators)


def digest(case: Case) -> str:
    """16 hexadecimal digits that name a case: SHA-256 of its JSON text."""
    return text_digest(dumps(case))


def text_digest(text: str) -> str:
    """The `digest` of the case whose compact JSON text this is."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def loads(text: str, memory: int = DEFAULT_MEMORY) -> Case:
    """Read a case from JSON text.

    `memory` is the budget in bytes for one rank's tensors.

    Raises:
        CaseError: the text is not a case, names something unknown, or asks for more memory than the budget.
    """
    if len(text) > MAX_TEXT:
        raise CaseError(f"case: {len(text)} characters, more than {MAX_TEXT}")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except CaseError:
        raise
    except (ValueError, RecursionError) as error:
        raise CaseError(f"case: not JSON ({str(error)[:80]})") from None
    return from_dict(data, memory)


def from_dict(data: Any, memory: int = DEFAULT_MEMORY) -> Case:
    """Read a case from what `json.loads` returned. Raises CaseError as `loads` does."""
    if not isinstance(data, dict):
        raise CaseError(f"case: an object, not {type(data).__name__}")
    version = data.get("cclfuzz")
    if version != FORMAT or type(version) is not int:
        raise CaseError(f'case: "cclfuzz" must be {FORMAT}, the format\'s version, not {version!r:.80}')
    case = _build(Case, {key: value for key, value in data.items() if key != "cclfuzz"}, "case")
    assert isinstance(case, Case)
    needed = case.memory()
    if needed > memory:
        raise CaseError(f"case: needs {needed} bytes a rank, over the budget of {memory} (--memory raises it)")
    check(case)
    return case


def _refuse_constant(name: str) -> Any:
    raise CaseError(f"case: {name} is not a number here")


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(wanted: Any, value: Any, where: str) -> Any:
    """Build a value of the annotated type from plain JSON, or say what is wrong."""
    if is_dataclass(wanted):
        return _build_dataclass(typing.cast(type, wanted), value, where)
    origin = typing.get_origin(wanted)
    if origin is types.UnionType or origin is typing.Union:
        if value is None:
            return None
        (inner,) = [option for option in typing.get_args(wanted) if option is not type(None)]
        return _build(inner, value, where)
    if origin is tuple:
        return _build_tuple(typing.get_args(wanted), value, where)
    if wanted is float and type(value) is int and abs(value) < 1 << 1000:
        return float(value)
    if type(value) is not wanted:
        raise CaseError(f"{where}: {wanted.__name__}, not {value!r:.80}")
    return value


def _build_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise CaseError(f"{where}: a list of at most {MAX_ITEMS}, not {value!r:.80}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_build(args[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if len(value) != len(args):
        raise CaseError(f"{where}: a list of {len(args)}, not {len(value)}")
    return tuple(
        _build(arg, item, f"{where}[{index}]") for index, (arg, item) in enumerate(zip(args, value, strict=True))
    )


def _build_dataclass(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise CaseError(f"{where}: an object, not {value!r:.80}")
    known = {field.name: field for field in fields(cls) if field.init}
    for key in value:
        if key not in known:
            raise CaseError(f"{where}: unknown field {key!r:.80}")
    hints = _hints(cls)
    arguments = {}
    for name, field in known.items():
        if name in value:
            arguments[name] = _build(hints[name], value[name], f"{where}.{name}")
        elif field.default is MISSING:
            raise CaseError(f"{where}: field {name!r} is missing")
    try:
        return cls(**arguments)
    except CaseError as error:
        raise CaseError(f"{where}: {error}") from None
