"""`determinism compare`: compare recorded traces."""

from __future__ import annotations

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import Reports, verdict_options


@click.command(cls=ConfiguredCommand, short_help="Compare recorded runs.")
@verdict_options
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Compare N processes at once."
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Compare on the Dask cluster with this scheduler, which sees the same files."
)
@click.option(
    "--invariants", "checks_invariants", is_flag=True, help="Check what must agree within one recorded run, DIR."
)
@click.argument("traces", nargs=-1, required=True, type=click.Path(), metavar="DIR DIR...")
def compare(
    traces: tuple[str, ...],
    strict: bool,
    allow_failure: bool,
    reports: Reports,
    jobs: int,
    scheduler: str | None,
    checks_invariants: bool,
) -> None:
    """Compare two or more recorded runs, as `check` does.

    A DIR may be a URL that fsspec knows, such as s3://bucket/run.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive.
    """
    from determinism.cli.ending import ProgressLine, conclude, conclude_invariants, reporting
    from determinism.trace.opening import trace_folder

    if checks_invariants:
        from determinism.invariants.launch import check_stored

        if len(traces) != 1 or strict or jobs != 1 or scheduler is not None:
            raise click.UsageError(
                "--invariants checks one run by itself, so give one DIR, and no --strict, --jobs or --scheduler."
            )
        with reporting(reports):
            findings = check_stored(trace_folder(traces[0]))
        conclude_invariants(findings, reports)
    with reporting(reports), ProgressLine() as line:
        from determinism.comparison.executors import pairs_over
        from determinism.session.check import compare_over
        from determinism.trace.reader import recorded_records

        folders = [trace_folder(trace) for trace in traces]
        line.expect(sum(map(recorded_records, folders)))
        with pairs_over(jobs, scheduler, line.say) as compare_pairs:
            comparison = compare_over(compare_pairs, *folders, strict=strict, allow_failure=allow_failure)
    conclude(comparison, reports)
