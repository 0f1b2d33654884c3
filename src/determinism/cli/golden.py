"""`determinism golden` and `bisect`: commit digests of each step, check runs against them, find what changed them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import OutputFile, Reports, file_option, program_argument

json_option = file_option("json", "Write the result as JSON.")
steps_option = click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End each run after N steps.")


@click.group(short_help="Keep the digests of each step in a file to commit, and check against it.")
def golden() -> None:
    """Keep the digests of each step of a program in a small file to commit, and check later runs against it."""


@golden.command(cls=ConfiguredCommand, short_help="Write the golden of a program.")
@click.argument("file", type=OutputFile(), metavar="FILE")
@steps_option
@click.option("--update", is_flag=True, help="Replace FILE if it exists.")
@program_argument
def create(program: tuple[str, ...], file: Path, steps: int | None, update: bool) -> None:
    """Run a program, and write the digests of each step and the environment to FILE.

    A second run shows whether the program repeats itself; a third, of one step, records its ops.

    Exit status: 0 written, 1 two runs differ, 2 trouble, 130 if Ctrl-C ended it.
    """
    from determinism.cli.ending import ProgressLine, reporting
    from determinism.golden.launch import GoldenRequest, GoldenRuns, create_golden
    from determinism.golden.result import unrepeatable
    from determinism.report.entries import path_text

    line = ProgressLine()
    with reporting(), line, GoldenRuns(GoldenRequest(program, steps), line.announce, line.say) as runs:
        comparison = create_golden(runs, file, update=update)
    if comparison is not None:
        _print(unrepeatable(comparison, program))
        sys.exit(1)
    _print([f"Golden: {path_text(str(file))}, {file.stat().st_size:,} bytes. Commit it."])


@golden.command(cls=ConfiguredCommand, short_help="Run a program and compare it with its golden.")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@steps_option
@json_option
@program_argument
def check(program: tuple[str, ...], file: Path, steps: int | None, json_file: Path | None) -> None:
    """Run a program, and compare the state after each step with FILE.

    If they differ, a second run shows whether the program repeats itself, and another records its ops and names the line.
    Without --steps, the program runs for as many steps as FILE has.

    Exit status: 0 same, 1 different, 2 trouble, 130 if Ctrl-C ended it.
    """
    from determinism.cli.ending import ProgressLine, reporting
    from determinism.golden.launch import GoldenRequest, GoldenRuns, check_golden
    from determinism.golden.result import answer, comparison_document, follow_up

    line = ProgressLine()
    reports = Reports(json_file)
    with reporting(reports), line, GoldenRuns(GoldenRequest(program, steps), line.announce, line.say) as runs:
        comparison = check_golden(runs, file)
        _write_json(json_file, comparison_document(comparison))
    _print([*answer(comparison), *follow_up(comparison, file, program)])
    sys.exit(comparison.verdict.exit_status)


@click.command(cls=ConfiguredCommand, short_help="Find the commit that changed what a program computes.")
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The expected results.  [default: those at --good]",
)
@click.option("--good", required=True, metavar="REV", help="A commit with the expected results.")
@click.option("--bad", default="HEAD", show_default=True, metavar="REV", help="A later commit without them.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="End each run after N steps.  [default: as many as the golden has]",
)
@file_option("json", "Write the result as JSON.")
@program_argument
def bisect(
    program: tuple[str, ...], golden: Path | None, good: str, bad: str, steps: int | None, json_file: Path | None
) -> None:
    """Run a program at commits between a good and a bad one, and name the first one whose results differ.

    `git bisect` chooses the commits, in a temporary work tree: yours stays as it is. Commits at which the program fails are skipped.

    Exit status: 0 found, 1 only a range of commits found, 2 trouble, 130 if Ctrl-C ended it.
    """
    from determinism.cli.ending import ProgressLine, reporting
    from determinism.golden.bisect import Bisection, BisectRequest, answer_lines, bisect_document

    line = ProgressLine()
    with reporting(Reports(json_file)), line:
        result = Bisection(BisectRequest(program, good, bad, golden, steps), line.announce, line.say).run()
        _write_json(json_file, bisect_document(result))
    _print(answer_lines(result))
    sys.exit(0 if result.is_certain else 1)


def _write_json(file: Path | None, content: dict[str, Any]) -> None:
    """Write a document to the file given with `--json`, if any.

    Raises:
        UsageError: The file cannot be written.
    """
    if file is not None:
        from determinism.report.document import write_report

        write_report(file, f"{json.dumps(content, indent=1)}\n", "--json")


def _print(lines: list[str]) -> None:
    from determinism.errors import legible

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        click.echo(legible(line, encoding))
