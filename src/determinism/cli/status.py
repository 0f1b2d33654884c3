"""`determinism status`: look up what is known about the determinism of ops."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, NoReturn

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.errors import DeterminismError

_DEVICES = ("cpu", "cuda", "rocm", "xpu", "mps", "tpu", "meta", "gpu")
_DIRECTIONS = ("forward", "backward")
_VERDICTS = ("deterministic", "nondeterministic", "raises", "depends", "unknown")
_WIDTH_OF_A_FILE = 140


def _named_like(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return shell completions: the ops that begin with the input, else those whose last part does."""
    from determinism.knowledge.entries import index

    names = sorted({entry.name for entry in index().entries})
    return [name for name in names if name.startswith(incomplete)] or [
        name for name in names if name.rpartition(".")[2].startswith(incomplete)
    ]


@click.command(cls=ConfiguredCommand, short_help="Look up whether ops are deterministic.")
@click.option(
    "--framework", metavar="F", help="Restrict to one framework or library, such as torch, tensorflow, jax or nccl."
)
@click.option("--version", metavar="V", help="Version to answer for.  [default: the installed one]")
@click.option("--device", type=click.Choice(_DEVICES), help="Restrict to one device; gpu means any GPU.")
@click.option("--direction", type=click.Choice(_DIRECTIONS), help="Restrict to the forward or the backward pass.")
@click.option(
    "--verdict", type=click.Choice(_VERDICTS), help="Restrict to one verdict, with or without deterministic mode."
)
@click.option("--all", "everything", is_flag=True, help="List everything that is known.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("ops", nargs=-1, metavar="[OP]...", shell_complete=_named_like)
def status(
    ops: tuple[str, ...],
    framework: str | None,
    version: str | None,
    device: str | None,
    direction: Any,
    verdict: Any,
    everything: bool,
    as_json: bool,
) -> None:
    """Say whether ops are deterministic, by version, device and direction, and what to do if they are not.

    OP is a name (torch.Tensor.scatter_add_, scatter_add, tf.nn.bias_add, a Keras layer, aten::index_put), the name of a kernel,
    or the text of an error about determinism.

    Exit status: 0 answered, 2 trouble, such as an unknown op.
    """
    if bool(ops) == everything:
        raise click.UsageError("Give either the ops to look up or --all, which lists everything that is known.")
    from determinism.knowledge.query import not_installed
    from determinism.knowledge.query import status as known_status

    try:
        answers = known_status(
            *ops, framework=framework, version=version, device=device, direction=direction, verdict=verdict
        )
    except DeterminismError as error:
        _refuse(error, as_json)
    if as_json:
        from determinism.report.status import status_document

        click.echo(status_document(answers))
        return
    from determinism.report.status import list_text, op_status_text

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else _WIDTH_OF_A_FILE
    colors = is_terminal and not os.environ.get("NO_COLOR")
    if everything:
        click.echo(list_text(answers, width, colors))
        return
    others = [] if framework or version else not_installed(*ops)
    click.echo(op_status_text(answers, others, width, colors))


def _refuse(error: DeterminismError, as_json: bool) -> NoReturn:
    """Say why there is no answer, and exit with 2."""
    from determinism.cli.ending import say

    say(error.message)
    if as_json:
        from determinism.report.status import status_document

        click.echo(status_document([], error))
    sys.exit(2)
