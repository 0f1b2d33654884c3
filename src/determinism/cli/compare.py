"""`determinism compare`: compare traces that were recorded before."""

from __future__ import annotations

from pathlib import Path

import click

from determinism.cli.options import verdict_options


@click.command()
@verdict_options
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR DIR...")
def compare(traces: tuple[Path, ...], strict: bool, allow_failure: bool, json_file: Path | None) -> None:
    """Compare two or more recorded runs."""
    from determinism.cli.ending import conclude, fail
    from determinism.comparison.runs import compare as compare_traces
    from determinism.errors import DeterminismError

    try:
        comparison = compare_traces(*traces, strict=strict, allow_failure=allow_failure)
    except DeterminismError as error:
        fail(error, json_file)
    conclude(comparison, json_file)
