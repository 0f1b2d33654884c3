"""`determinism check-batch`: check whether a row's result depends on its batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import PROGRAM_SETTINGS, Reports, program_argument, report_options


class Sizes(click.ParamType):  # type: ignore[type-arg]  # older versions of click have no type argument
    """Comma-separated numbers."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Convert the text to numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(
                f"{value!r} is not a list of sizes. Give whole numbers separated by commas, such as 1,16,64.",
                param,
                ctx,
            )


@click.command(
    "check-batch",
    cls=ConfiguredCommand,
    context_settings=PROGRAM_SETTINGS,
    short_help="Check whether results depend on the batch size.",
)
@click.option(
    "--sizes", type=Sizes(), default="1,16,64", show_default=True, help="Values of {batch}, one for each run."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the traces.  [default: .determinism/<time>]",
)
@click.option("--keep", is_flag=True, help="Keep the traces even if the rows are the same.")
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Make further runs to find a fix.  [default: if a run takes less than a minute]",
)
@report_options
@program_argument
def check_batch(program: tuple[str, ...], reports: Reports, **options: Any) -> None:
    """Run a program with batches of different sizes, and say whether equal rows have equal results.

    {batch} in the command is replaced by the size. Rows are matched by content: wherever equal rows enter an op or the model,
    with equal weights, equal rows must come out. If they do not, the report names the first op, its line, and a fix.

    Exit status: 0 same, 1 different, 2 trouble or inconclusive, 130 if Ctrl-C ended it.
    """
    from determinism.batch.launch import BatchCheck, BatchRequest
    from determinism.cli.ending import ProgressLine, conclude, keep_report, reporting
    from determinism.types import Verdict

    line = ProgressLine()
    running: list[BatchCheck] = []
    with reporting(reports, lambda: running[0].runs if running else []), line:
        running.append(BatchCheck(BatchRequest(program=program, **options), line.announce, line.say))
        comparison = running[0].run()
    kept = keep_report(comparison, running[0].folder) if comparison.verdict is Verdict.DIFFERENT else None
    conclude(comparison, reports, running[0].interrupt_status, kept=kept)
