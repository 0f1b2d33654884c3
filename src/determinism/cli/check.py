"""`determinism check`: run a program twice and name the first tensor that differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import (
    PROGRAM_SETTINGS,
    Factors,
    Reports,
    program_argument,
    recording_options,
    verdict_options,
)
from determinism.types import Verdict


@click.command(
    cls=ConfiguredCommand,
    context_settings=PROGRAM_SETTINGS,
    short_help="Run a program twice and name the first tensor that differs.",
)
@click.option(
    "-n",
    "--runs",
    "num_runs",
    type=click.IntRange(min=2),
    help="Number of runs.  [default: 2, and up to 3 more if they are equal but depend on timing]",
)
@recording_options(without=["values"])
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the traces.  [default: .determinism/<time>]",
)
@click.option("--keep", is_flag=True, help="Keep the traces even if the runs are the same.")
@click.option(
    "--runs-from",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Use this stored run as the first one.",
)
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Make further runs to find the cause.  [default: if a run takes less than a minute]",
)
@click.option("--fix/--no-fix", default=True, show_default=True, help="Verify fixes by further runs.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time limit for the search for the cause.  [default: 30 runs, 1 to 15 minutes]",
)
@click.option(
    "--vary",
    type=Factors(),
    default=(),
    metavar="all|NAME,...",
    help="If the runs are the same, make further runs with these factors perturbed.",
)
@click.option("--before", metavar="COMMAND", help="Run a shell command before each run.")
@click.option("--fresh-copy", is_flag=True, help="Start each run in a new copy of the working directory.")
@click.option("--fail-fast", is_flag=True, help="Stop a later run as soon as it differs.")
@verdict_options
@program_argument
def check(program: tuple[str, ...], reports: Reports, **options: Any) -> None:
    """Run a program twice, unchanged, and say whether every tensor was bit-identical.

    If not, the report names the cause and its line, a fix, and the first record that differs.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive, 130 if Ctrl-C ended it.
    """
    from determinism.cli.ending import ProgressLine, conclude, keep_report, reporting, show_first
    from determinism.launch.check import Check
    from determinism.launch.runs import CheckRequest

    request = CheckRequest(program, **options)
    line = ProgressLine()
    running = Check(request, line.announce, line.say, lambda comparison: show_first(comparison, reports, line))
    with reporting(reports, lambda: running.runs), line:
        comparison = running.run()
    kept = keep_report(comparison, running.folder) if comparison.verdict is Verdict.DIFFERENT else None
    conclude(comparison, reports, running.interrupt_status, kept=kept)
