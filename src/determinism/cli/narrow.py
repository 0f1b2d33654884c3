"""`determinism narrow`: find the step at which two long runs diverge, and record only the ops around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import (
    PROGRAM_SETTINGS,
    Reports,
    program_argument,
    recording_options,
    verdict_options,
)


@click.command(
    cls=ConfiguredCommand,
    context_settings=PROGRAM_SETTINGS,
    short_help="Find the step at which long runs first differ, and record only the ops around it.",
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Use this run, recorded with --level step, as the first one.",
)
@recording_options(without=["values", "invariants", "level", "window"])
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for traces and checkpoints.  [default: .determinism/<time>]",
)
@click.option("--keep", is_flag=True, help="Keep the traces even if the runs are the same.")
@click.option("--explain/--no-explain", default=True, show_default=True, help="Make further runs to find the cause.")
@click.option("--fix/--no-fix", default=True, show_default=True, help="Verify fixes by further runs.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time limit for the search for the cause.  [default: 10 runs up to the window, or 1 to 15 minutes if that is more]",
)
@click.option("--before", metavar="COMMAND", help="Run a shell command before each run.")
@click.option("--fresh-copy", is_flag=True, help="Start each run in a new copy of the working directory.")
@verdict_options
@program_argument
def narrow(program: tuple[str, ...], reports: Reports, ledger: Path | None, **options: Any) -> None:
    """Run a long program twice with a ledger of its steps, and record the ops of a few steps around the first one that differs.

    If the program can resume, put {steps}, {save} and {load} into its command, as for check-resume, and give --steps:
    further runs then start from a checkpoint right before that step. Otherwise they start from the beginning, and record
    nothing before it.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive, 130 if Ctrl-C ended it.
    """
    from functools import partial

    from determinism.cli.ending import run_check
    from determinism.launch.check import Check
    from determinism.launch.runs import CheckRequest
    from determinism.narrow.launch import NarrowCheck, NarrowRequest

    run_check(partial(NarrowCheck, NarrowRequest(CheckRequest(program, **options), ledger), Check), reports)
