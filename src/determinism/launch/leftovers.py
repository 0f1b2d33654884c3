"""What one run of a check leaves on the disk and a later one reads: then the runs did not start alike."""

from __future__ import annotations

import json
import linecache
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from determinism.comparison.result import Leftover
from determinism.launch.reading import LEFTOVERS_PREFIX
from determinism.trace.names import Frame

_TICK_SECONDS = 0.02
"""File systems take the time from a clock that lags by up to this much."""


class RunTimes:
    """When each run of a check began and ended, by which a file tells in which run it was changed."""

    def __init__(self, first_number: int) -> None:
        """Take the number of the first run that is made; 2 if a stored one stands before it."""
        self.ended: list[tuple[int, int]] = []
        """Begin and end of each run that is over, in nanoseconds since 1970."""
        self._first_number = first_number

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
        return [
            Leftover(
                file,
                self._first_number + run,
                number,
                not fresh_copy and Path(file).is_relative_to(working_directory),
                site,
            )
            for (run, file), site in sorted(_notes(trace).items())
        ]


def _notes(trace: Path) -> dict[tuple[int, str], Frame | None]:
    """The run that changed it and the path of each file that was read, and where it was read first."""
    found: dict[tuple[int, str], Frame | None] = {}
    for path in trace.glob(f"{LEFTOVERS_PREFIX}*.jsonl"):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                note = json.loads(line)
                found.setdefault((int(note["run"]), str(note["file"])), _frame(note.get("site")))
            except (ValueError, KeyError, TypeError):
                # The process was killed while it wrote.
                continue
    return found


def _frame(site: list[Any] | None) -> Frame | None:
    if site is None:
        return None
    file, line, function = str(site[0]), int(site[1]), str(site[2])
    return Frame(file, line, function, linecache.getline(file, line).strip())
