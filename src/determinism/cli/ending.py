"""How a subcommand ends: the report on the terminal and as JSON, and the exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from determinism.comparison.result import Comparison, Recorded, RunSummary, Trouble
from determinism.errors import DeterminismError
from determinism.report.legible import legible
from determinism.types import Verdict


def conclude(comparison: Comparison, json_file: Path | None) -> NoReturn:
    """Show a comparison, write it down, and exit as its verdict says."""
    from rich.console import Console

    from determinism.report.terminal import render

    render(comparison, Console(highlight=False, soft_wrap=False))
    sys.exit(max(comparison.verdict.exit_status, _write(comparison, json_file)))


def fail(error: DeterminismError, json_file: Path | None, runs: list[RunSummary] | None = None) -> NoReturn:
    """Say what kept the command from a verdict, write it down, and exit with 2."""
    click.echo(f"determinism: {legible(error.message)}", err=True)
    trouble = [Trouble(error.identifier, error.message)]
    _write(Comparison(Verdict.INCONCLUSIVE, runs or [], Recorded(), trouble), json_file)
    sys.exit(2)


def _write(comparison: Comparison, json_file: Path | None) -> int:
    if json_file is None:
        return 0
    from determinism.report.document import write_document

    try:
        write_document(json_file, comparison)
    except DeterminismError as error:
        click.echo(f"determinism: {legible(error.message)}", err=True)
        return 2
    return 0
