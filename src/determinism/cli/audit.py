"""`determinism audit`: measure whether ops return the same bits every time, and compare with the declared facts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from determinism.cli.configuration import ConfiguredCommand

if TYPE_CHECKING:
    from determinism.audit.launch import OpAuditRequest, Way
    from determinism.knowledge.entries import Audit


@click.command(cls=ConfiguredCommand, short_help="Measure whether ops return the same bits every time.")
@click.option("--framework", default="torch", show_default=True, help="Framework to measure.")
@click.option("--device", default="cpu", show_default=True, help="Device to run on: cpu or cuda.")
@click.option("--ops", multiple=True, metavar="OP,...", help="Only these ops, by the first name that `status` shows.")
@click.option("--runs", type=click.IntRange(min=2), default=20, show_default=True, help="Number of runs of each case.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=2.0, show_default=True, help="Time limit for each case."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for the inputs.")
@click.option(
    "-o",
    "--output",
    metavar="PLACE",
    type=click.Path(path_type=Path),
    help="File for the results, or a folder for it.",
)
@click.option(
    "--database",
    is_flag=True,
    help="Use the small samples of PyTorch's own tests, for every op; needs expecttest.",
)
@click.option("--patched", is_flag=True, help="Also measure with ops replaced as by `run --patch`; PyTorch only.")
@click.option("--diff", is_flag=True, help="Measure nothing; list stored results that contradict the declared facts.")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(dir_okay=False, path_type=Path))
def audit(
    framework: str,
    device: str,
    ops: tuple[str, ...],
    runs: int,
    seconds: float,
    seed: int,
    output: Path | None,
    database: bool,
    patched: bool,
    diff: bool,
    files: tuple[Path, ...],
) -> None:
    """Run ops repeatedly on equal inputs chosen to provoke differences, and count the distinct results.

    Each case runs forward and backward, with all threads and with one, with and without the framework's deterministic mode.
    With --diff, FILE is a stored result to compare with the declared facts; the default is the results that ship with this
    tool.

    Exit status: 0 no result contradicts the declared facts, 1 some do, 2 trouble, 130 if Ctrl-C ended it; results measured
    by then are shown and kept.
    """
    if files and not diff:
        raise click.UsageError(
            "A stored result is read only with --diff, so nothing was measured. Add --diff, or leave FILE out."
        )
    from determinism.audit.launch import INTERRUPTED_AUDIT, OpAuditRequest
    from determinism.cli.ending import reporting
    from determinism.knowledge.entries import known_audits, read_audit
    from determinism.knowledge.query import disagreements
    from determinism.launch.program import INTERRUPTED
    from determinism.report.status import audit_text, disagreements_text

    with reporting():
        if diff:
            audits = [read_audit(file) for file in files] or list(known_audits())
        else:
            names = [name.strip() for text in ops for name in text.split(",")]
            audits = [
                _measure(OpAuditRequest(framework, device, names, runs, seconds, seed, database, patched), output)
            ]
            click.echo(audit_text(audits[0]) + "\n")
        news = {audit.title: list(disagreements(audit)) for audit in audits}
        click.echo(disagreements_text(news))
    stopped = [audit.stopped for audit in audits if audit.stopped is not None]
    if stopped and not diff:
        sys.exit(INTERRUPTED if stopped == [INTERRUPTED_AUDIT] else 2)
    sys.exit(1 if any(news.values()) else 0)


def _measure(request: OpAuditRequest, output: Path | None) -> Audit:
    from determinism.audit.launch import audit
    from determinism.knowledge.entries import check_output

    if output is not None:
        check_output(output)
    measured = audit(request, _told)
    if output is not None:
        place = output / measured.file_name if output.is_dir() else output
        place.write_text(measured.text(), encoding="utf-8")
    return measured


def _told(way: Way, done: int, cases: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{way}: {done} of {cases} cases ", nl=done == cases, err=True)
    elif done == cases:
        click.echo(f"determinism: {way}: {cases} {'case' if cases == 1 else 'cases'}", err=True)
