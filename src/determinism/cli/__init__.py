"""How the command `determinism` begins and ends: it reads its configuration and reports usage errors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from determinism.cli.configuration import read_configuration, subcommands
from determinism.cli.options import Reports
from determinism.errors import legible, raise_terminated
from determinism.types import __version__


class _OutputClosed(Exception):
    """The reader of the output is gone, for which click would exit with the status of a difference."""


class _Command(click.Group):
    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, found, rest = super().resolve_command(context, args)
        if name is not None and found is not None and not context.resilient_parsing:
            configuration = read_configuration(Path.cwd(), subcommands(self.commands))
            sections: dict[str, dict[str, str]] = {}
            for path, one in subcommands({name: found}).items():
                if configuration is None:
                    break
                values, sections[path] = configuration.defaults(path, one)
                outer, _, inner = path.partition(".")
                defaults = dict(context.default_map or {})
                context.default_map = {
                    **defaults,
                    outer: {**defaults.get(outer, {}), inner: values} if inner else values,
                }
            context.obj = (configuration, sections)
        return name, found, rest

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            raise _OutputClosed from error


def command_of(parts: Sequence[click.Command]) -> click.Group:
    """Return the command with these subcommands."""

    @click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
    @click.version_option(__version__, prog_name="determinism")
    def command() -> None:
        """Check whether a deep-learning program is bit-exact from run to run, find out why not, and make it so.

        Start with:  determinism check -- python train.py
        """

    for subcommand in parts:
        command.add_command(subcommand)
    return command


def run_command(command: click.Group) -> NoReturn:
    """Run the command line; the exit status is 0 same, 1 different, 2 trouble or inconclusive."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Ignored signals, as under `nohup`, stay ignored.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, raise_terminated)
    try:
        status = _run(command)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, _OutputClosed) as error:
        # The output no longer has a reader, or its disk is full.
        _silence(sys.stdout, 1)
        if not isinstance(error, BrokenPipeError | _OutputClosed):
            from determinism.cli.ending import say

            say(f"The report cannot be printed ({error}). Give --json FILE to keep it.")
        status = 2
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        _silence(sys.stderr, 2)
    sys.exit(status)


def _silence(stream: object, descriptor: int) -> None:
    """Keep the rest of a stream's buffer from raising again when Python exits."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _run(command: click.Group) -> int:
    try:
        return int(command.main(prog_name="determinism", standalone_mode=False) or 0)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 2 if ending.code else 0
    except click.ClickException as error:
        error.show()
        _report_usage(error)
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo("determinism: Interrupted.", err=True)
        return int(getattr(error.__cause__ or error, "exit_status", 128 + signal.SIGINT))
    except ImportError as error:
        from determinism.launch.interpreter import unusable

        reason, line = unusable(sys.executable, str(error))
        click.echo(f"determinism: nothing was done: {legible(reason)}\n{legible(line)}", err=True)
        return 2


def _report_usage(error: click.ClickException) -> None:
    """Write the reports that were requested of a command with invalid options."""
    context = getattr(error, "ctx", None)
    found = {} if context is None else context.params
    names = [f"{name}_file" for name in ("json", "html", "junit", "sarif", "code_quality")]
    files = {name: found[name] for name in names if isinstance(found.get(name), Path)}
    reports = Reports(is_annotated=found.get("annotate") is True, **files)
    if reports.is_wanted:
        from determinism.cli.ending import write_trouble

        write_trouble("usage", error.format_message(), reports)
