"""Opens the trace of a process, or of its threads, with what describes it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from determinism import environment
from determinism.frameworks.torch.libraries import libraries
from determinism.frameworks.torch.settings import settings
from determinism.process_name import world_size
from determinism.trace.writer import ProcessWriter
from determinism.types import RecordingOptions

_PARTS = ("worker", "pool")
"""Streams of processes that another one made for itself; their folders are named after its."""


class ProcessTraces:
    """The traces of one process."""

    def __init__(self, options: RecordingOptions) -> None:
        self._options = options
        self.environment: dict[str, Any] = {}
        """What the process runs in; empty until `begin`."""

    def begin(self) -> None:
        """Look at what this process runs in, which a forked one does again."""
        self.environment = {**environment.describe(), **libraries()}

    def open(self, folder: Path, stream: str, **facts: Any) -> ProcessWriter:
        """Open one.

        Args:
            folder: An existing folder that belongs to it alone.
            stream: What records it: `process`, `threads`, `worker`, `pool`.
            facts: Added to `process.json`.

        Raises:
            OSError: It cannot be written.
        """
        description = {
            "framework": "torch",
            "level": self._options.level,
            "stream": stream,
            "steps_by": None,
            "argv": sys.argv,
            "started": time.time(),
            "environment": self.environment,
            "settings": settings(),
        }
        if stream == "process":
            facts["values"] = self._options.values
            facts["world_size"] = world_size()
        elif stream in _PARTS:
            facts["part_of"] = folder.name.rpartition(".")[0]
        return ProcessWriter(folder, description={**description, **facts}, max_bytes=self._options.max_disk)
