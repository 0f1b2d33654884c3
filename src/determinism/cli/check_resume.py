"""`determinism check-resume`: tell whether a resumed run goes on as the full one, and what its checkpoint lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from determinism.cli.options import PROGRAM_SETTINGS, Reports, failure_option, report_options


@click.command(
    "check-resume", context_settings=PROGRAM_SETTINGS, short_help="Resume a program and name what its checkpoint lacks."
)
@click.option("--full", metavar="COMMAND", help="Trains without stopping.")
@click.option("--first", metavar="COMMAND", help="Trains some steps, saves, and ends.")
@click.option("--resumed", metavar="COMMAND", help="Goes on from what was saved.")
@click.option(
    "--steps", type=click.IntRange(min=2), default=8, show_default=True, help="What {steps} is in the full run."
)
@click.option("--at", type=click.IntRange(min=1), help="What {steps} is in the first run.  [default: half of --steps]")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where traces and checkpoints go.  [default: .determinism/<time>]",
)
@click.option("--keep", is_flag=True, help="Keep them although the runs are the same.")
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Make further runs that try what can be mended from outside.  [default: if a run takes less than a minute]",
)
@failure_option
@report_options
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def check_resume(program: tuple[str, ...], reports: Reports, **options: Any) -> None:
    """Run a program in full, up to a checkpoint, and on from it; say whether the resumed steps are bit-identical.

    If not, the report names what was not saved, and the line that saves; what can be mended from outside is, in further runs. Give three commands, or one with {steps}, {save} and
    {load} in it: the step to stop at, the file to save to, and the file to go on from, which is empty in runs that begin anew.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive, 130 if Ctrl-C ended it.
    """
    from determinism.cli.ending import ProgressLine, conclude, reporting
    from determinism.resume.launch import ResumeCheck, ResumeRequest

    line = ProgressLine()
    running = ResumeCheck(ResumeRequest(program=program, **options), line.announce, line.say)
    with reporting(reports, lambda: running.runs), line:
        comparison = running.run()
    conclude(comparison, reports, running.interrupt_status)
