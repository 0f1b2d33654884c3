"""Checks deterministic programs many times, in turn: the verdict of every check must be *same*.

    python -m tests.e2e.many_checks --checks 100

Prints a table of the programs; the exit status is 1 if any verdict is different.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.e2e.checking import check_command
from tests.e2e.clean_programs import ALL, Program


class Outcome(NamedTuple):
    """The outcome of one check."""

    name: str
    verdict: str
    seconds: float
    records: int
    folder: Path
    """Kept if the verdict is not *same*."""


def check_once(name: str, program: Program) -> Outcome:
    """Check a program in a separate folder."""
    folder = Path(tempfile.mkdtemp(prefix="check-"))
    started = time.monotonic()
    try:
        report = check_command(folder, program.words, options=["--runs", "2"]).report
        verdict, records = report["verdict"], report["recorded"]["records"]
    except Exception as error:
        verdict, records = f"{type(error).__name__}: {error}", 0
    if verdict == "same":
        shutil.rmtree(folder)
    return Outcome(name, verdict, time.monotonic() - started, records, folder)


def check_all(programs: dict[str, Program], num_checks: int, num_workers: int) -> Iterator[Outcome]:
    """Check the programs in turn until the number of checks is reached, and yield the outcomes in order."""
    turns = itertools.islice(itertools.cycle(programs.items()), num_checks)
    with ThreadPoolExecutor(num_workers) as pool:
        yield from pool.map(lambda turn: check_once(*turn), turns)


def table(outcomes: list[Outcome]) -> list[str]:
    """Return a row for each program, and one for all programs."""
    rows = [f"{'program':<24}{'checks':>8}{'same':>8}{'records':>10}{'seconds':>10}"]
    names = list(dict.fromkeys(outcome.name for outcome in outcomes))
    for name in (*names, None):
        own = [outcome for outcome in outcomes if name in (None, outcome.name)]
        num_same = sum(outcome.verdict == "same" for outcome in own)
        title = name or f"{len(names)} programs"
        records = sum(outcome.records for outcome in own) if name is None else own[-1].records
        seconds = sum(outcome.seconds for outcome in own) / (1 if name is None else len(own))
        rows.append(f"{title:<24}{len(own):>8}{num_same:>8}{records:>10,}{seconds:>10.1f}")
    return rows


def main() -> int:
    """Run the checks, and print their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=len(ALL), help="how many in all [default: each program once]")
    parser.add_argument("--programs", nargs="+", choices=ALL, default=list(ALL), metavar="NAME")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many checks run at a time")
    options = parser.parse_args()
    outcomes = []
    for outcome in check_all({name: ALL[name] for name in options.programs}, options.checks, options.workers):
        outcomes.append(outcome)
        print(f"{len(outcomes):>4} {outcome.name}: {outcome.verdict}, {outcome.seconds:.1f} s", flush=True)
    print("", *table(outcomes), sep="\n")
    different = [outcome for outcome in outcomes if outcome.verdict != "same"]
    for outcome in different:
        print(f"{outcome.name}: {outcome.verdict}; see {outcome.folder}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
