"""`determinism show`: show what a trace contains."""

from __future__ import annotations

import click

from determinism.cli.configuration import ConfiguredCommand


@click.command(cls=ConfiguredCommand, short_help="Show what a trace contains.")
@click.option("--step", type=click.IntRange(min=0), metavar="K", help="List the records of one step.")
@click.option("--records", type=click.IntRange(min=1), metavar="N", help="List at most N records.")
@click.argument("trace", type=click.Path(), metavar="DIR")
def show(trace: str, step: int | None, records: int | None) -> None:
    """Show what a trace contains: the run and, for each process, its steps, phases and most frequent ops."""
    from determinism.cli.ending import reporting
    from determinism.report.terminal import ReportConsole

    console = ReportConsole()
    with reporting():
        from determinism.report.show import render_records, render_trace
        from determinism.trace.opening import open_trace, trace_folder

        opened = open_trace(trace_folder(trace))
        if step is None and records is None:
            render_trace(opened, console)
        else:
            render_records(opened, console, step=step, limit=records)
