"""Clean cases by the ten thousand: whatever is found that is not a known defect of the library is a false alarm.

    python ci/clean.py                               100,000 cases over gloo and over vllm-model
    python ci/clean.py --backend gloo --examples 5000 --seed 7

Runs `cclfuzz run --layout contiguous` in parts of 10,000 cases, each with a seed and a folder of its own. The first
part and every tenth after it draw sizes up to 1 GiB a rank, the others up to 4 MiB, which takes a fifth of the time a
case. Known defects are the repros in docs/trophies. Exit status: 0 nothing else was found, 1 something was (its folder
is printed), 3 a part did not run to its end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PART = 10_000
"""Cases a part: what is lost when the machine is."""

LARGE_EVERY = 10
"""Of so many parts one draws large tensors too."""

ROOT = Path(__file__).parent.parent
KNOWN = frozenset(path.stem for path in (ROOT / "docs" / "trophies").glob("*.py"))


def main() -> int:
    """Run the parts of every backend; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", help="once for each (default: gloo and vllm-model)")
    parser.add_argument("--examples", type=int, default=100_000, help="cases a backend")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first part; each part adds one")
    parser.add_argument("--out", type=Path, default=Path("runs/clean"), help="where the run folders are")
    given = parser.parse_args()
    unknown: list[Path] = []
    for backend in given.backend or ("gloo", "vllm-model"):
        drawn = 0
        for part, first in enumerate(range(0, given.examples, PART)):
            folder = given.out / backend / str(given.seed + part)
            examples = min(PART, given.examples - first)
            memory = "4MiB" if part % LARGE_EVERY else "1GiB"
            status = _run(backend, examples, given.seed + part, memory, folder)
            if status not in (0, 1):
                sys.stdout.write(f"{backend}: part {part} ended with status {status}\n")
                return 3
            drawn += examples
            unknown += _unknown(folder)
            sys.stdout.write(f"{backend}: {drawn:,} cases drawn, {len(unknown)} findings that are not known\n")
            sys.stdout.flush()
    for finding in unknown:
        sys.stdout.write(f"not known: {finding}\n")
    return 1 if unknown else 0


def _run(backend: str, examples: int, seed: int, memory: str, out: Path) -> int:
    options = ["--backend", backend, "--layout", "contiguous", "--examples", str(examples), "--seed", str(seed)]
    command = [sys.executable, "-m", "fuzz.cli", "run", *options, "--memory", memory, "--out", str(out)]
    return subprocess.run(command, cwd=Path.cwd(), check=False).returncode


def _unknown(out: Path) -> list[Path]:
    """Folders of the bugs whose key no trophy has. What is only noted is no alarm."""
    found = [(path, json.loads(path.read_text())) for path in sorted(out.rglob("finding.json"))]
    return [path.parent for path, one in found if one["standing"] in ("bug", "breach") and one["key"] not in KNOWN]


if __name__ == "__main__":
    sys.exit(main())
