"""The command `determinism`: one small file per subcommand."""

from __future__ import annotations

import sys

import click

from determinism import __version__
from determinism.cli.check import check
from determinism.cli.compare import compare
from determinism.cli.record import record
from determinism.cli.show import show


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="determinism")
def command() -> None:
    """Find out whether a deep-learning program is bit-exact from run to run, and why it is not."""


for subcommand in (check, record, compare, show):
    command.add_command(subcommand)


def main() -> None:
    """Run the command line; the exit status is 0 same, 1 different, 2 trouble or inconclusive."""
    try:
        command.main(prog_name="determinism")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(2)
