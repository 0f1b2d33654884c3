"""Checks the programs with a known cause, one after the other, and prints the findings.

    python -m tests.e2e.many_causes --only seeding/time_seed ordering --checks 3

Prints a table; the exit status is 1 if any verdict, cause or line is wrong.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cause_programs import ALL
from tests.e2e.checking import SEARCH, check_command
from tests.e2e.expected_causes import PATIENCE, SURROUNDINGS, CauseProgram, is_at, named, strangers


class Found(NamedTuple):
    """A row of the table: the result of one check, and whether it is right."""

    path: str
    verdict: str
    is_verdict_right: bool
    kind: str
    causes: str
    is_cause_right: bool
    line: str
    is_line_right: bool
    statuses: str
    fixes: str
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the verdict, the cause and the line are all right."""
        return self.is_verdict_right and self.is_cause_right and self.is_line_right


HEADINGS = ("program", "verdict", "kind", "cause", "line", "status", "fixes", "seconds")


def cells(found: Found) -> tuple[str, ...]:
    """The cells of a row; wrong ones are marked."""

    def marked(text: str, is_right: bool) -> str:
        return text if is_right else f"!{text}"

    return (
        found.path,
        marked(found.verdict, found.is_verdict_right),
        found.kind,
        marked(found.causes, found.is_cause_right),
        marked(found.line, found.is_line_right),
        found.statuses,
        found.fixes,
        f"{found.seconds:.1f}",
    )


def check_once(program: CauseProgram, options: tuple[str, ...], reports: Path | None) -> Found:
    """Check a program in its own folder, and write the report to the folder for reports."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cause-") as folder:
        try:
            document = check_command(
                Path(folder),
                program.words,
                options=(*SEARCH, *program.options, *options),
                environment=SURROUNDINGS,
                exit_status=program.exit_status,
                patience=PATIENCE,
            ).report
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[-300:]
            return Found(program.path, text, False, "-", "-", False, "-", False, "-", "-", time.monotonic() - started)
    if reports is not None:
        (reports / f"{program.path.replace('/', '-')}.json").write_text(
            json.dumps(document, indent=1), encoding="utf-8"
        )
    return _found(program, document, time.monotonic() - started)


def _found(program: CauseProgram, document: dict[str, Any], seconds: float) -> Found:
    expected = [(cause, named(document, cause)) for cause in program.causes]
    causes = document["causes"]
    first = document["first_divergence"]
    sites = [f"{Path(site['file']).name}:{site['line']}" for cause in causes for site in cause["sites"][:1]]
    return Found(
        program.path,
        document["verdict"],
        document["verdict"] == program.verdict,
        "-" if first is None else first["kind"],
        " ".join(cause["id"] for cause in causes) or "-",
        None not in [found for _, found in expected] and not strangers(document, program),
        " ".join(sites) or "-",
        all(found is not None and is_at(found, program, cause) for cause, found in expected),
        " ".join(cause["status"] for cause in causes) or "-",
        " ".join("verified" if fix["verified"] else "unverified" for fix in document["fixes"]) or "-",
        seconds,
    )


def chosen(names: list[str]) -> Iterator[CauseProgram]:
    """The programs with these names, or in these folders."""
    for name in names:
        programs = [program for path, program in ALL.items() if path == name or path.startswith(f"{name}/")]
        if not programs:
            raise SystemExit(f"No program or folder is called {name!r}; there are {', '.join(ALL)}.")
        yield from programs


def table(rows: list[Found]) -> list[str]:
    """The lines of the table, with a summary."""
    texts = [HEADINGS, *[cells(row) for row in rows]]
    widths = [max(len(text[column]) for text in texts) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)).rstrip() for text in texts]
    verdicts, causes, sites = (
        sum(getattr(row, name) for row in rows) for name in ("is_verdict_right", "is_cause_right", "is_line_right")
    )
    return [*lines, "", f"Of {len(rows)}: verdict right {verdicts}, cause right {causes}, line right {sites}"]


def main() -> int:
    """Run the checks and print their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(ALL), metavar="NAME", help="programs, or folders of them")
    parser.add_argument("--checks", type=int, default=1, help="how often each is checked")
    parser.add_argument(
        "--option", action="append", default=[], help="for `determinism check`, like --option=--no-explain"
    )
    parser.add_argument("--verdicts", action="store_true", help="do not ask for causes")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where the reports are kept")
    options = parser.parse_args()
    if options.reports is not None:
        options.reports.mkdir(parents=True, exist_ok=True)
    rows: list[Found] = []
    for program in chosen(options.only):
        for _ in range(options.checks):
            rows.append(check_once(program, tuple(options.option), options.reports))
            print("  ".join(cells(rows[-1])), flush=True)
    print("", *table(rows), sep="\n")
    return 0 if all(row.is_verdict_right and (options.verdicts or row.is_right) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
