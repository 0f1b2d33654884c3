"""Runs the command that prepares a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from determinism.errors import LaunchError
from determinism.exit_status import exit_phrase


def prepare(command: str, title: str, *, folder: Path | None, log: Path) -> None:
    """Run a shell command, which is not recorded.

    Args:
        command: For the shell.
        title: What run it prepares.
        folder: Where it runs; None for the working directory.
        log: The file for its output.

    Raises:
        LaunchError: It failed.
        OSError: The log cannot be written.
    """
    environment = None if folder is None else {**os.environ, "PWD": str(folder)}
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    if ended.returncode:
        raise LaunchError(
            "before-failed",
            f"The command given with --before ended with {exit_phrase(ended.returncode)}, so {title} was not made: "
            f"{command}\nIts output is in {log}. Mend it; `|| true` at its end says that it may fail.",
        )
