"""`determinism check-resume`: check whether a resumed run equals the full one, and name what its checkpoint lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import PROGRAM_SETTINGS, Reports, failure_option, optional_program_argument, report_options


@click.command(
    "check-resume",
    cls=ConfiguredCommand,
    context_settings=PROGRAM_SETTINGS,
    short_help="Resume a program and name what its checkpoint lacks.",
)
@click.option("--full", metavar="COMMAND", help="Command that trains without stopping.")
@click.option("--first", metavar="COMMAND", help="Command that trains some steps, saves, and exits.")
@click.option("--resumed", metavar="COMMAND", help="Command that resumes from what was saved.")
@click.option(
    "--steps", type=click.IntRange(min=2), default=8, show_default=True, help="Value of {steps} in the full run."
)
@click.option("--at", type=click.IntRange(min=1), help="Value of {steps} in the first run.  [default: half of --steps]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for traces and checkpoints.  [default: .determinism/<time>]",
)
@click.option("--keep", is_flag=True, help="Keep them even if the runs are the same.")
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Make further runs that restore missing state from outside.  [default: if a run takes less than a minute]",
)
@failure_option
@report_options
@optional_program_argument
def check_resume(program: tuple[str, ...], reports: Reports, **options: Any) -> None:
    """Run a program in full, then up to a checkpoint and resumed from it, and say whether the resumed steps are bit-identical.

    If they are not, the report names what the checkpoint lacks and the line that saves it. Further runs restore the missing state
    from outside where that is possible, to verify it.

    Give three commands, or one that contains {steps}, {save} and {load}: the step to stop at, the file to save to, and the file
    to resume from, which is empty in runs that start from scratch.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive, 130 if Ctrl-C ended it.
    """
    from determinism.cli.ending import ProgressLine, conclude, keep_report, reporting
    from determinism.resume.launch import ResumeCheck, ResumeRequest
    from determinism.types import Verdict

    line = ProgressLine()
    running = ResumeCheck(ResumeRequest(program=program, **options), line.announce, line.say)
    with reporting(reports, lambda: running.runs), line:
        comparison = running.run()
    kept = keep_report(comparison, running.folder) if comparison.verdict is Verdict.DIFFERENT else None
    conclude(comparison, reports, running.interrupt_status, kept=kept)
