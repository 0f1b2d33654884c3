"""Runs programs with and without probes, and returns their output and the notes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from determinism.diagnose.sources import Source, differing_sources
from determinism.launch.program import child_environment
from determinism.run_spec import FixedSource, ProbeRequest, RunSpec


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    stdout: str
    stderr: str


class Stage:
    """A folder with a program to be run with and without probes."""

    def __init__(self, folder: Path, text: str, **modules: str) -> None:
        self.folder = folder / "program"
        self.folder.mkdir()
        self._notes = folder
        self._runs = 0
        for name, content in {"main": text, **modules}.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(content), encoding="utf-8")

    @property
    def main(self) -> str:
        """Path of the program."""
        return str(self.folder / "main.py")

    def plain(self, *command: str, **environment: str) -> Ended:
        """Run a command, by default the program, without probes."""
        return self._ended(command, {**os.environ, **environment})

    def probed(self, *command: str, request: ProbeRequest | None = None, **environment: str) -> Ended:
        """Run it with probes."""
        return self.run(RunSpec(probes=request or ProbeRequest()), *command, **environment)

    def run(self, spec: RunSpec, *command: str, **environment: str) -> Ended:
        """Run it according to a specification."""
        return self._ended(command, child_environment({**os.environ, **environment}, spec))

    def noted(self, *command: str, **environment: str) -> Path:
        """Run it with notes, and return the folder that holds them."""
        self._runs += 1
        folder = self._notes / f"notes-{self._runs}"
        folder.mkdir()
        ended = self.probed(*command, request=ProbeRequest(notes=folder), **environment)
        assert ended.status == 0, ended.stderr
        return folder

    def differing(self, *command: str, **environment: str) -> list[Source]:
        """Return the sources that differ between two runs."""
        return differing_sources(self.noted(*command, **environment), self.noted(*command, **environment))

    def fixed(self, *sources: Source, **environment: str) -> Ended:
        """Run it with sources fixed at their lines."""
        fixed = tuple(FixedSource(one.site.file, one.site.line, one.source) for one in sources)
        return self.probed(request=ProbeRequest(fixed=fixed), **environment)

    def _ended(self, command: Sequence[str], environment: Mapping[str, str]) -> Ended:
        done = subprocess.run(
            command or [sys.executable, self.main], cwd=self.folder, env=dict(environment), capture_output=True,
            text=True, timeout=600, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)


def documents(folder: Path) -> list[dict[str, Any]]:
    """Return every line noted by any process."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
