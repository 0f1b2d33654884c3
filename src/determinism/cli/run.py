"""`determinism run`: start a program so that it is deterministic."""

from __future__ import annotations

from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import PROGRAM_SETTINGS, enabling_options, program_argument


@click.command(
    cls=ConfiguredCommand, context_settings=PROGRAM_SETTINGS, short_help="Run a program with deterministic settings."
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Seed every random generator, each with its own stream."
)
@click.option("--patch", is_flag=True, help="Replace ops that have no deterministic implementation.")
@enabling_options
@program_argument
def run(program: tuple[str, ...], **options: Any) -> None:
    """Run a program, unchanged, with every setting that makes it deterministic.

    The exit status is the program's own, or 2 if it could not be started.
    """
    from determinism.cli.ending import reporting
    from determinism.launch.doctor import start_enabled
    from determinism.run_spec import EnablingRequest, RunSpec

    with reporting():
        start_enabled(program, RunSpec(enabling=EnablingRequest(**options)))
