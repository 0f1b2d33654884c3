"""`determinism compare`: compare traces that were recorded before."""

from __future__ import annotations

from pathlib import Path

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import Reports, verdict_options


@click.command(cls=ConfiguredCommand, short_help="Compare recorded runs.")
@verdict_options
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR DIR...")
def compare(traces: tuple[Path, ...], strict: bool, allow_failure: bool, reports: Reports) -> None:
    """Compare two or more recorded runs, as `check` does.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive.
    """
    from determinism.cli.ending import ProgressLine, conclude, reporting

    with reporting(reports), ProgressLine() as line:
        from determinism.session.check import compare as compare_traces
        from determinism.trace.reader import recorded_records

        line.expect(sum(recorded_records(trace) for trace in traces))
        comparison = compare_traces(*traces, strict=strict, allow_failure=allow_failure)
    conclude(comparison, reports)
