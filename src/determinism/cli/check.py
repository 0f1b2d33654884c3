"""`determinism check`: run a program twice and name the first tensor that differs."""

from __future__ import annotations

from pathlib import Path

import click

from determinism.cli.options import PROGRAM_SETTINGS, program_argument, recording_options, verdict_options


@click.command(
    context_settings=PROGRAM_SETTINGS, short_help="Run a program twice and name the first tensor that differs."
)
@click.option(
    "-n", "--runs", "num_runs", type=click.IntRange(min=2), default=2, show_default=True, help="How many runs."
)
@recording_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the traces go.  [default: .determinism/<time>]",
)
@click.option("--keep", is_flag=True, help="Keep the traces although the runs are the same.")
@click.option(
    "--runs-from",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Compare new runs with a stored one, which counts as the first.",
)
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Make further runs to confirm what was found.  [default: if a run takes less than a minute]",
)
@verdict_options
@program_argument
def check(
    program: tuple[str, ...],
    num_runs: int,
    level: str,
    steps: int | None,
    max_disk: int | None,
    output: Path | None,
    keep: bool,
    runs_from: Path | None,
    explain: bool | None,
    strict: bool,
    allow_failure: bool,
    json_file: Path | None,
) -> None:
    """Run a program twice, unchanged, and say whether every tensor was bit-identical.

    If not, the report names the first record that differs, its line, and what kind of difference it is.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive.
    """
    from determinism.cli.ending import conclude, reporting, say
    from determinism.cli.progress import ProgressLine
    from determinism.launch.check import Check, CheckRequest

    request = CheckRequest(
        program, num_runs, level, steps, output, keep, max_disk, strict, allow_failure, runs_from, explain
    )
    line = ProgressLine()
    running = Check(request, line.announce, say)
    with reporting(json_file, lambda: running.runs), line:
        comparison = running.run()
    conclude(comparison, json_file)
