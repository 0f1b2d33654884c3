"""`determinism doctor`: show what is deterministic in an environment and what is not."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import PROGRAM_SETTINGS, Reports, enabling_options, file_option, optional_program_argument

SCHEMA = "determinism.doctor/1"


@click.command(
    cls=ConfiguredCommand, context_settings=PROGRAM_SETTINGS, short_help="Show which settings this environment lacks."
)
@enabling_options
@click.option("--explain", is_flag=True, help="Show the reason and the source of each setting.")
@file_option("json", "Write the findings as JSON.")
@optional_program_argument
def doctor(
    program: tuple[str, ...],
    warn_only: bool,
    threads: int | None,
    precision: str | None,
    explain: bool,
    json_file: Path | None,
) -> None:
    """Show which determinism settings this environment has and lacks, with the lines to add.

    With COMMAND, its interpreter is inspected; the program itself is not run, only read for the
    settings that its trainer makes. To see what `run` changes:
    determinism run --seed 1 -- determinism doctor

    Exit status: 0 nothing is missing, 1 something is, 2 trouble.
    """
    from determinism.cli.ending import reporting
    from determinism.knowledge.settings import Request, explanation
    from determinism.launch.doctor import inspect_environment
    from determinism.report.document import write_report
    from determinism.report.show import story

    reports = Reports(json_file)
    with reporting():
        reports.check_places()
        inspection = inspect_environment(program, Request(warn_only, threads, precision))
        if json_file is not None:
            document = {"schema": SCHEMA, "missing": len(inspection.missing), **asdict(inspection)}
            write_report(json_file, json.dumps(document, indent=1, ensure_ascii=False) + "\n", "--json")
        click.echo(story(inspection))
        if explain:
            click.echo("\n" + explanation(inspection.settings, inspection.remaining))
    sys.exit(1 if inspection.missing or inspection.failures else 0)
