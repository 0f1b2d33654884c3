"""`determinism check`: run a program twice and name the first tensor that differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

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
from determinism.types import Level

if TYPE_CHECKING:
    from determinism.launch.runs import CheckRequest


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
@recording_options(without=["values", "invariants"])
@click.option(
    "-o",
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
@click.option(
    "--narrow",
    "is_narrowed",
    is_flag=True,
    help="For long runs: find the step by digests, and record only the ops around it, like `determinism narrow`.",
)
@click.option(
    "--invariants",
    "checks_invariants",
    is_flag=True,
    help="Make one run, and check what must agree within it, such as replicas of parameters on all ranks.",
)
@verdict_options
@program_argument
def check(
    program: tuple[str, ...], reports: Reports, is_narrowed: bool, checks_invariants: bool, **options: Any
) -> None:
    """Run a program twice, unchanged, and say whether every tensor was bit-identical.

    If not, the report names the cause and its line, a fix, and the first record that differs.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive, 130 if Ctrl-C ended it.
    """
    from functools import partial

    from determinism.cli.ending import run_check
    from determinism.launch.check import Check
    from determinism.launch.runs import CheckRequest

    request = CheckRequest(program, **options)
    if checks_invariants:
        _check_invariants(request, reports, is_narrowed)
    if not is_narrowed:
        run_check(partial(Check, request), reports)
    from determinism.narrow.launch import NarrowCheck, NarrowRequest

    run_check(partial(NarrowCheck, NarrowRequest(_narrowable(request)), Check), reports)


def _check_invariants(request: CheckRequest, reports: Reports, is_narrowed: bool) -> NoReturn:
    """Make one run and check it by itself."""
    from determinism.cli.ending import ProgressLine, conclude_invariants, reporting
    from determinism.invariants.launch import InvariantCheck

    refused = {
        "-n": request.num_runs is not None,
        "--runs-from": request.runs_from is not None,
        "--vary": bool(request.vary),
        "--before": request.before is not None,
        "--fresh-copy": request.fresh_copy,
        "--fail-fast": request.fail_fast,
        "--from-step": request.spec.window is not None,
        "--narrow": is_narrowed,
        "--strict": request.strict,
    }
    given = [option for option, is_given in refused.items() if is_given]
    if given:
        raise click.UsageError(
            "--invariants makes one run and compares nothing with another, so it cannot be combined with "
            f"{', '.join(given)}."
        )
    line = ProgressLine()
    with reporting(reports), line:
        findings = InvariantCheck(request, line.announce, line.say).run()
    conclude_invariants(findings, reports)


def _narrowable(request: CheckRequest) -> CheckRequest:
    """Return the request if `--narrow` can fulfill it.

    Raises:
        UsageError: It has options that need runs recorded from their beginning.
    """
    refused = {
        "-n": request.num_runs is not None,
        "--level": request.spec.level != Level.OP,
        "--from-step": request.spec.window is not None,
        "--runs-from": request.runs_from is not None,
        "--vary": bool(request.vary),
        "--fail-fast": request.fail_fast,
    }
    given = [option for option, is_given in refused.items() if is_given]
    if given:
        raise click.UsageError(
            "--narrow makes two runs at level step and chooses what is recorded itself, so it cannot be combined "
            f"with {', '.join(given)}. To narrow a stored run: determinism narrow --ledger DIR -- COMMAND."
        )
    return request
