"""`determinism check`: run a program twice and name the first tensor that differs."""

from __future__ import annotations

from pathlib import Path

import click

from determinism.cli.options import PROGRAM_SETTINGS, program_argument, recording_options, verdict_options


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("-n", "--runs", "num_runs", type=click.IntRange(min=2), default=2, show_default=True, help="How many runs.")
@recording_options
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Where the traces go.  [default: .determinism/<time>]")
@click.option("--keep", is_flag=True, help="Keep the traces although the runs are the same.")
@click.option("--runs-from", type=click.Path(path_type=Path), metavar="DIR", help="Compare one new run with a stored one.")
@click.option("--explain/--no-explain", default=None, help="Make further runs to confirm what was found.  [default: if a run takes less than a minute]")
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

    If not, the report names the first record that differs, its line, and what kind of difference it is. The exit status
    is 0 for same, 1 for different, 2 for trouble or an inconclusive comparison.
    """
    from determinism.cli.ending import conclude, fail
    from determinism.cli.progress import ProgressLine
    from determinism.errors import DeterminismError
    from determinism.launch.check import Check, CheckRequest

    request = CheckRequest(
        program, num_runs, level, steps, output, keep, max_disk, strict, allow_failure, runs_from, explain
    )
    with ProgressLine() as line:
        running = Check(request, line.announce, lambda message: click.echo(f"determinism: {message}", err=True))
        try:
            comparison = running.run()
        except DeterminismError as error:
            line.announce("stopped")
            fail(error, json_file, running.runs)
    conclude(comparison, json_file)
