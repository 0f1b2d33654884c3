"""`determinism bisect`: find the commit that changed what a program computes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.golden import write_json
from determinism.cli.options import Reports, file_option, program_argument


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
    from determinism.errors import legible
    from determinism.golden.bisect import Bisection, BisectRequest, answer_lines, bisect_document

    line = ProgressLine()
    with reporting(Reports(json_file)), line:
        result = Bisection(BisectRequest(program, good, bad, golden, steps), line.announce, line.say).run()
        write_json(json_file, bisect_document(result))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for text in answer_lines(result):
        click.echo(legible(text, encoding))
    sys.exit(0 if result.is_certain else 1)
