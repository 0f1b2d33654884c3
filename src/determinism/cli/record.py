"""`determinism record`: run a program once and keep its trace."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import PROGRAM_SETTINGS, program_argument, recording_options
from determinism.run_spec import RunSpec


@click.command(
    cls=ConfiguredCommand, context_settings=PROGRAM_SETTINGS, short_help="Run a program once and record a trace."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder for the trace."
)
@click.option(
    "--part",
    metavar="NAME",
    help="Record one part of a run, such as one machine of a cluster; all parts share DIR.",
)
@recording_options()
@program_argument
def record(
    program: tuple[str, ...],
    output: Path,
    part: str | None,
    spec: RunSpec,
) -> None:
    """Run a program once, unchanged, and record what it computes to DIR.

    The exit status is the program's own (128 + N if signal N ended it), or 2 if it could not be recorded.
    """
    from determinism.cli.ending import reporting, say
    from determinism.launch.interpreter import check_interpreter
    from determinism.launch.io import StandardInput
    from determinism.launch.program import Interrupted
    from determinism.launch.record import record_program, require_recorded
    from determinism.trace.opening import part_folder

    with reporting():
        folder = output if part is None else part_folder(output, part)
        warning = check_interpreter(program, os.environ)
        if warning is not None:
            say(warning)
        try:
            with StandardInput() as standard_input:
                # The end matters most in a long run that fails. Kept values need the records from the first one on.
                keeps_newest = spec.max_disk is not None and spec.values is None
                completed = replace(spec, trace_folder=folder, keeps_newest=keeps_newest)
                result = record_program(program, completed, stdin=standard_input)
            status = result.exit_status
            require_recorded(folder, status)
        except Interrupted as interrupted:
            say(f"{interrupted.message} The trace recorded so far is kept in {folder}.")
            status = interrupted.program_exit.exit_status
    sys.exit(status if status >= 0 else 128 - status)
