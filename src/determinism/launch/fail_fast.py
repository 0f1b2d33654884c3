"""Follows a run while it goes on, and tells when it has shown a difference from the first one."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Self

from determinism.comparison.process import compare_processes
from determinism.comparison.siblings import alone
from determinism.comparison.whole_steps import up_to_common_step
from determinism.errors import TraceError
from determinism.trace.live import take_picture
from determinism.trace.reader import ProcessTrace, Trace
from determinism.trace.schema import PROCESSES_FOLDER

_LEAST_SECONDS = 0.5
_SHARE = 10
"""Between two looks passes this many times what a look takes, so that looking never takes much from the program."""


class FailFast:
    """Compares what there is of a run with the first one, again and again, in a thread; a context that ends with the run.

    Only whole steps are compared, and only live differences count, so what differs now differs at the end as well. Of threads
    and pools, whose records come in any order, only what reaches the rest of the program is looked at. So of programs that
    are started beside each other: which is which is known only at the end.
    """

    def __init__(self, first: Trace, folder: Path) -> None:
        """Nothing is looked at yet.

        Args:
            first: The first run.
            folder: The trace of the run that is about to begin.
        """
        self._first = {process.key: process for process in alone(first)}
        self._folder = folder
        self._pictures = folder.with_name(f"{folder.name}.pictures")
        self._ended = threading.Event()
        self._differs = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fail fast", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        shutil.rmtree(self._pictures, ignore_errors=True)

    def is_decided(self) -> bool:
        """Whether the run differs."""
        return self._differs.is_set()

    def _follow(self) -> None:
        pause = _LEAST_SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            if any(self._process_differs(key) for key in self._first):
                self._differs.set()
                return
            pause = max(_LEAST_SECONDS, _SHARE * (time.monotonic() - began))

    def _process_differs(self, key: str) -> bool:
        picture = self._pictures / key
        try:
            if self._ended.is_set() or not take_picture(self._folder / PROCESSES_FOLDER / key, picture):
                return False
            # Of its own: the first run is read elsewhere too.
            whole = up_to_common_step(ProcessTrace(self._first[key].folder), ProcessTrace(picture))
            return whole is not None and compare_processes(*whole).divergence is not None
        except (TraceError, OSError):
            # It ends or begins just now; the comparison after its end says what is wrong with it.
            return False
