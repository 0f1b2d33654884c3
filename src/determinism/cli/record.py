"""`determinism record`: run a program once and keep its trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from determinism.cli.options import PROGRAM_SETTINGS, program_argument, recording_options


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The trace to make.")
@recording_options
@program_argument
def record(program: tuple[str, ...], output: Path, level: str, steps: int | None, max_disk: int | None) -> None:
    """Run a program once, unchanged, and record every op to DIR.

    The exit status is the program's own, or 2 if it could not be recorded.
    """
    from determinism.cli.ending import fail
    from determinism.errors import DeterminismError, LaunchError
    from determinism.launch.interpreter import check_interpreter
    from determinism.launch.record import record_program
    from determinism.launch.standard_input import StandardInput
    from determinism.launch.unrecorded import unrecorded_reason

    try:
        warning = check_interpreter(program, os.environ)
        if warning is not None:
            click.echo(f"determinism: {warning}", err=True)
        with StandardInput() as standard_input:
            result = record_program(
                program, output, level=level, steps=steps, max_disk=max_disk, stdin=standard_input
            )
        reason = unrecorded_reason(output)
        if reason is not None:
            raise LaunchError("nothing-recorded", f"{reason} The program ended with exit status {result.exit_status}.")
    except DeterminismError as error:
        fail(error, None)
    sys.exit(result.exit_status if result.exit_status >= 0 else 128 - result.exit_status)
