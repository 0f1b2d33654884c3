"""The command `determinism`, also `python -m determinism`: one file per subcommand; `bisect` is in that of `golden`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click


def command() -> click.Group:
    """Return the command with all subcommands, which are imported here without the modules that each needs to run."""
    from determinism.cli import command_of
    from determinism.cli.audit import audit
    from determinism.cli.check import check
    from determinism.cli.check_batch import check_batch
    from determinism.cli.check_resume import check_resume
    from determinism.cli.compare import compare
    from determinism.cli.doctor import doctor
    from determinism.cli.golden import bisect, golden
    from determinism.cli.lint import lint
    from determinism.cli.narrow import narrow
    from determinism.cli.record import record
    from determinism.cli.report import report
    from determinism.cli.run import run
    from determinism.cli.show import show
    from determinism.cli.status import status

    return command_of([
        check, lint, narrow, check_resume, check_batch, golden, bisect, run, doctor, record, compare, report, show, status, audit
    ])  # fmt: skip


def main() -> None:
    """Run the command line; Ctrl-C ends it with a message even while its modules are being imported."""
    try:
        from determinism.cli import run_command

        whole = command()
    except KeyboardInterrupt:
        sys.stderr.write("\ndeterminism: Interrupted.\n")
        sys.exit(130)
    run_command(whole)


if __name__ == "__main__":
    main()
