"""What one run of a check leaves on the disk and a later one reads: then the runs did not start alike."""

from __future__ import annotations

import json
import linecache
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from determinism.comparison.result import FileChange, Leftover
from determinism.launch.reading import LEFTOVERS_PREFIX
from determinism.trace.names import Frame

_TICK_SECONDS = 0.02
"""File systems take the time from a clock that lags by up to this much."""
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


class RunTimes:
    """When each run of a check began and ended, by which a file tells in which run it was changed."""

    def __init__(self, first_number: int) -> None:
        """Take the number of the first run that is made; 2 if a stored one stands before it."""
        self.ended: list[tuple[int, int]] = []
        """Begin and end of each run that is over, in nanoseconds since 1970."""
        self._first_number = first_number
        self._writes = _Writes()

    @contextmanager
    def run(self) -> Iterator[None]:
        """The next run; what is done to files right before and after it does not count as its own."""
        begin = time.time_ns()
        yield
        end = time.time_ns()
        time.sleep(_TICK_SECONDS)
        self.ended.append((begin, end))

    def leftovers(self, trace: Path, *, fresh_copy: bool) -> list[Leftover]:
        """What the run that ended last read of the earlier ones.

        Args:
            trace: Its trace.
            fresh_copy: Whether it started in a copy of the working directory.
        """
        working_directory = Path.cwd()
        number = self._first_number + len(self.ended) - 1
        self._writes.add(len(self.ended) - 1, trace)
        return [
            Leftover(
                file,
                self._first_number + run,
                number,
                not fresh_copy and Path(file).is_relative_to(working_directory),
                site,
                self._writes.change(file, run),
            )
            for (run, file), site in sorted(_notes(trace).items())
        ]


class _Writes:
    """Files that runs were seen to write, and whether these existed before any of them did so."""

    def __init__(self) -> None:
        self._by: dict[str, set[int]] = {}
        self._existed: dict[str, bool] = {}

    def add(self, run: int, trace: Path) -> None:
        """Add what the processes of a run noted; runs come in their order."""
        changes = [note for note in _lines(trace) if isinstance(note.get("at"), int)]
        for note in sorted(changes, key=lambda note: int(note["at"])):
            for how in ("wrote", "removed"):
                if isinstance(path := note.get(how), str):
                    self._existed.setdefault(path, note.get("existed") is not False)
                    if how == "wrote":
                        self._by.setdefault(path, set()).add(run)

    def change(self, file: str, run: int) -> FileChange:
        """How a file came to change during a run."""
        path = os.path.realpath(file)
        if run not in self._by.get(path, ()):
            return FileChange.UNSEEN
        # To remove a link leaves the file that it leads to, and packages are for those who installed them to remove.
        is_own = not os.path.islink(file) and not _PACKAGE_FOLDERS.intersection(Path(path).parts)
        return FileChange.CREATED if is_own and not self._existed[path] else FileChange.OVERWRITTEN


def _lines(trace: Path) -> Iterator[dict[str, Any]]:
    """What the processes of a run noted about files."""
    for path in sorted(trace.glob(f"{LEFTOVERS_PREFIX}*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            try:
                note = json.loads(line)
            except ValueError:
                # The process was killed while it wrote.
                continue
            if isinstance(note, dict):
                yield note


def _notes(trace: Path) -> dict[tuple[int, str], Frame | None]:
    """The run that changed it and the path of each file that was read, and where it was read first."""
    found: dict[tuple[int, str], Frame | None] = {}
    for note in _lines(trace):
        if isinstance(note.get("run"), int) and isinstance(note.get("file"), str):
            found.setdefault((note["run"], note["file"]), _frame(note.get("site")))
    return found


def _frame(site: list[Any] | None) -> Frame | None:
    if site is None:
        return None
    file, line, function = str(site[0]), int(site[1]), str(site[2])
    return Frame(file, line, function, linecache.getline(file, line).strip())
