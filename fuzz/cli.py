"""The command line. Exit status: 0 nothing new, 1 findings, 2 the command or an input is wrong, 3 we failed."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console as RichConsole

from corpus.case import CaseError
from corpus.describe import describe
from fuzz import environments
from fuzz.backends import BUILT_IN, UnknownBackend, load
from fuzz.environments import TargetError
from fuzz.faults import UnknownFault, names
from fuzz.ranks.cluster import ClusterError
from fuzz.repro.code import ReproError

NOTHING, FINDINGS, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    name="cclfuzz",
    help="A differential-testing fuzzer for distributed collectives.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class UsageError(ValueError):
    """The command line asks for what cannot be; one line."""


def parse_size(text: str) -> int:
    """Bytes from "1GiB", "512MiB", "4096".

    Raises:
        UsageError: it is not a size.
    """
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]i?B?|B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"size {text!r}: a number of bytes, KiB, MiB or GiB, such as 1GiB")
    power = "BKMGT".index((match[2] or "B")[0].upper())
    return int(match[1]) << (10 * power)


def parse_time(text: str) -> float:
    """Seconds from "60s", "10m", "2h", "90".

    Raises:
        UsageError: it is not a time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])?", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"time {text!r}: seconds, minutes or hours above zero, such as 60s, 10m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def parse_worlds(text: str) -> tuple[int, ...]:
    """World sizes from "2,3".

    Raises:
        UsageError: one of them is not a world size.
    """
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"world {text!r}: sizes such as 2,3") from None
    if not sizes or sizes[0] < 1 or sizes[-1] > 64:
        raise UsageError(f"world {text!r}: 1 to 64 ranks")
    return sizes


def parse_flags(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Flags from NAME=VALUE, sorted.

    Raises:
        UsageError: one has no "=", or stands twice.
    """
    flags: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"flag {text!r}: NAME=VALUE")
        if name in flags:
            raise UsageError(f"flag {name}: given twice")
        flags[name] = value
    return tuple(sorted(flags.items()))


def parse_layouts(text: str) -> Literal["any", "contiguous"]:
    """Layouts to draw.

    Raises:
        UsageError: they are neither "any" nor "contiguous".
    """
    if text == "any":
        return "any"
    if text == "contiguous":
        return "contiguous"
    raise UsageError(f"layout {text!r}: any or contiguous")


def _listed(values: list[str] | None) -> tuple[str, ...] | None:
    """Repeated options and commas alike: --op a,b --op c."""
    return tuple(part.strip() for value in values for part in value.split(",")) if values else None


Memory = Annotated[str, typer.Option(help="Bytes of tensors that one rank may hold.")]
RayAddress = Annotated[str | None, typer.Option(help="A Ray cluster to use as it is; none: a private one here.")]


@app.command()
def run(
    backend: Annotated[
        str, typer.Option(help="The library under test: one of `cclfuzz backends`, or NAME@ENV.")
    ] = "gloo",
    env: Annotated[str | None, typer.Option(help="The environment that has it; `cclfuzz env list`.")] = None,
    world: Annotated[str, typer.Option(help="World sizes to draw from, such as 2,3.")] = "2,3,4",
    flag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a flag of the backend.")] = None,
    fault: Annotated[str | None, typer.Option(help="Seed a fault over the backend: a test of cclfuzz itself.")] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after drawing this many cases, shrinking aside."),
    ] = None,
    time: Annotated[str | None, typer.Option(help="Stop after this long, such as 60s or 10m.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same cases (with an empty database).")] = 0,
    op: Annotated[list[str] | None, typer.Option(help="Only these collectives.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only these dtypes.")] = None,
    layout: Annotated[str, typer.Option(help="any or contiguous.")] = "any",
    against: Annotated[
        str | None, typer.Option(help="A second backend, or NAME@ENV, that runs the same programs.")
    ] = None,
    illegal: Annotated[bool, typer.Option("--illegal", help="Draw programs with a mistake: are they refused?")] = False,
    memory: Memory = "1GiB",
    ray_address: RayAddress = None,
    out: Annotated[Path, typer.Option(help="Where run folders and the example database are.")] = Path("runs"),
) -> None:
    """Draw cases, run them on ranks, judge, shrink what fails, and write its repro."""
    from fuzz.campaign import Budget
    from fuzz.session import Session, fuzz

    if examples is None and time is None:
        examples = 1000
    session = Session(
        backend=backend if env is None else f"{backend}@{env}",
        worlds=parse_worlds(world),
        flags=parse_flags(flag or []),
        fault=fault,
        budget=Budget(examples, None if time is None else parse_time(time)),
        seed=seed,
        ops=_listed(op),
        dtypes=_listed(dtype),
        layouts=parse_layouts(layout),
        memory=parse_size(memory),
        ray_address=ray_address,
        against=against,
        illegal=illegal,
        out=out,
    )
    finished = fuzz(session)
    if finished.interrupted:
        raise typer.Exit(INTERRUPTED)
    if finished.findings:
        raise typer.Exit(FINDINGS)
    # A night in which a node died is a quiet night; one in which most cases have no verdict is none.
    raise typer.Exit(FAILED if 2 * finished.lost > finished.cases else NOTHING)


@app.command()
def replay(
    paths: Annotated[list[Path], typer.Argument(help="Case files, findings' folders, or folders of them.")],
    memory: Memory = "1GiB",
    ray_address: RayAddress = None,
) -> None:
    """Run cases again and say what the oracles find."""
    from fuzz.finding import load_case
    from fuzz.runner import Runner

    limit = parse_size(memory)
    loaded = [(path, load_case(path, limit)) for given in paths for path in _case_files(given)]
    console = RichConsole(highlight=False, soft_wrap=True, markup=False)
    failed = lost = False
    with Runner(ray_address=ray_address, memory=limit) as runner:
        for path, case in loaded:
            judgement = runner.run(case).judgement
            failed |= bool(judgement.failures)
            lost |= bool(judgement.lost)
            word = "FAILS" if judgement.failures else "LOST" if judgement.lost else "ok"
            console.print(f"{word} {_printable(str(path))}")
            if judgement.lost:
                console.print(f"  {judgement.lost}")
            if judgement.failures:
                console.print("".join(f"    {line}\n" for line in describe(case)), end="")
            for failure in judgement.failures:
                console.print(f"  {failure.kind}: {failure}")
                if failure.observed and failure.legal:
                    console.print(f"    observed {failure.observed}\n    legal    {failure.legal}")
    raise typer.Exit(FAILED if lost else FINDINGS if failed else NOTHING)


def _case_files(given: Path) -> list[Path]:
    """A file, a finding's folder, or every case.json and other case file below a folder.

    Raises:
        CaseError: there is none.
    """
    if not given.is_dir() or (given / "case.json").exists():
        return [given]
    found = sorted(given.rglob("case.json")) or sorted(given.rglob("*.json"))
    if not found:
        raise CaseError(f"{given}: no case file in this folder")
    return found


@app.command()
def export(
    finding: Annotated[Path, typer.Argument(help="A finding's folder.")],
    format: Annotated[str, typer.Option("--format", help="script, pytest or json.")] = "script",
) -> None:
    """Print a finding as a file that runs without us."""
    from fuzz.finding import case_text, load_finding
    from fuzz.repro.pytest_file import pytest_file
    from fuzz.repro.script import script

    if format not in ("script", "pytest", "json"):
        raise UsageError(f"format {format!r}: script, pytest or json")
    loaded = load_finding(finding)
    if format == "json":
        text = case_text(loaded.case)
    else:
        write = script if format == "script" else pytest_file
        text = write(loaded.case, loaded.failures, title=loaded.title, versions=loaded.versions, repeats=loaded.repeats)
    sys.stdout.write(text)


@app.command()
def backends(
    check: Annotated[str | None, typer.Option(help="Try every cell of this one's contract; print the matrix.")] = None,
    ray_address: RayAddress = None,
) -> None:
    """List the libraries under test, whether they can run here, and their flags and faults."""
    if check is not None:
        from fuzz import conformance
        from fuzz.environments import environments

        pythons = {one.name: one.python for one in environments()}
        matrix = conformance.check(check, pythons, ray_address=ray_address)
        sys.stdout.write(conformance.markdown(matrix))
        raise typer.Exit(matrix.exit_status)
    console = RichConsole(highlight=False, soft_wrap=True, markup=False)
    for name in BUILT_IN:
        backend = load(name)
        reason = backend.unavailable()
        console.print(f"{name}: {backend.summary}")
        console.print(f"  {'available' if reason is None else f'not available: {reason}'}")
        console.print(f"  collectives: {', '.join(backend.contract({}).ops)}")
        for flag in backend.flags:
            console.print(f"  --flag {flag.name}={'|'.join(flag.values)}")
        for fault, summary in names(backend).items():
            console.print(f"  --fault {fault}: {summary}")


env_app = typer.Typer(help="Virtual environments for libraries under test.", no_args_is_help=True)
app.add_typer(env_app, name="env")


@env_app.command("create")
def env_create(
    name: Annotated[str, typer.Argument(help="A target that comes with us, or with --from any name.")],
    source: Annotated[Path | None, typer.Option("--from", help="A requirements file.")] = None,
) -> None:
    """Make a virtual environment, for `--env NAME`."""
    made = environments.create(name, source)
    sys.stdout.write(f"{made.name}: {made.python}\n  {', '.join(made.packages)}\n")


@env_app.command("list")
def env_list() -> None:
    """List the environments that are there, and the targets that are not made yet."""
    there = environments.environments()
    for one in there:
        sys.stdout.write(f"{one.name}: {', '.join(one.packages)}\n  {one.python}\n")
    for name in sorted(environments.targets().keys() - {one.name for one in there}):
        sys.stdout.write(f"{name}: not made yet (cclfuzz env create {name})\n")


def _terminate(signum: int, frame: object) -> None:
    """SIGTERM ends a run as Ctrl-C does: what was found is kept, nothing is left behind."""
    raise KeyboardInterrupt


def main() -> None:
    """The `cclfuzz` command."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        status = INTERRUPTED
    except (UsageError, CaseError, ReproError, UnknownBackend, UnknownFault, TargetError) as error:
        _complain(str(error))
        status = USAGE
    except ClusterError as error:
        _complain(str(error))
        status = FAILED
    except (BrokenPipeError, SystemExit):
        # Nobody reads what we print. Rich leaves by SystemExit(1) then, which would read as findings.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    except Exception as error:
        # Whatever the parser refuses knows how to say so, and with which status.
        if not hasattr(error, "exit_code") or not hasattr(error, "format_message"):
            traceback.print_exc()
            status = FAILED
        else:
            _complain(error.format_message())
            status = error.exit_code
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BaseException:
        # InternalError is no Exception, so that Hypothesis does not shrink it.
        traceback.print_exc()
        status = FAILED
    sys.exit(status)


def _complain(text: str) -> None:
    """One line on the standard error, whatever was in the input."""
    sys.stderr.write(f"cclfuzz: {_printable(text)}\n")


def _printable(text: str) -> str:
    """One line without control characters, such as those that a file's name may hold."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


if __name__ == "__main__":
    main()
