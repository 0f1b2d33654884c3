"""What a run was asked for besides recording it: to look at rows, to keep generators, or to put them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.kept_generators import KeptGenerators, PutBackGenerators
from determinism.frameworks.torch.module_calls import Entered, Returned
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.rows import Rows
from determinism.frameworks.torch.watched_generators import WatchedGenerators
from determinism.types import RecordingOptions


class Besides:
    """The requests that one process of a run serves."""

    def __init__(self, options: RecordingOptions) -> None:
        self._options = options
        self._rows: Rows | None = None
        self._kept: KeptGenerators | None = None
        self._put_back: PutBackGenerators | None = None
        self._watched: WatchedGenerators | None = None

    @property
    def returned(self) -> Returned | None:
        """What is to be told that a module returned."""
        return self._returned if self._options.rows else None

    @property
    def entered(self) -> Entered | None:
        """What is to be told that an outermost module is called."""
        generators = self._options.generators
        return self._entered if self._options.rows or (generators and "from" in generators) else None

    def begin(self, recorder: Recorder, folder: Path) -> None:
        """Begin in a process.

        Args:
            recorder: That of its main thread.
            folder: Its place in the trace.

        Raises:
            OSError: A file cannot be read or written.
        """
        if self._options.rows is not None:
            self._rows = Rows(self._options.rows, folder)
            self._rows.watch(recorder)
        generators = self._options.generators
        if generators is None:
            return
        if "from" in generators:
            self._put_back = PutBackGenerators(generators, recorder, folder.name)
        elif "watch" in generators:
            self._watched = WatchedGenerators(folder)
        else:
            self._kept = KeptGenerators(folder)

    def step_ended(self) -> None:
        """A step of the main thread ended."""
        for one in (self._kept, self._watched):
            if one is not None:
                one.step_ended()

    def forked(self) -> Any:
        """This is a forked child, which begins anew; gives what belongs to the parent and must not be collected here."""
        parents = self._rows
        self._rows = self._kept = self._put_back = self._watched = None
        return parents

    def close(self) -> None:
        """Finish the files, and take back what was set.

        Raises:
            OSError: A file cannot be written.
        """
        for setting in (self._put_back, self._watched):
            for undo in setting.undo() if setting is not None else ():
                undo()
        for one in (self._rows, self._kept, self._watched):
            if one is not None:
                one.close()

    def _entered(self, recorder: Recorder, module: torch.nn.Module, arguments: Any) -> None:
        if self._put_back is not None:
            recorder.quietly(self._put_back.module_called)
        if self._rows is not None:
            self._rows.entered(recorder, module, arguments)

    def _returned(self, recorder: Recorder, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._rows is not None:
            self._rows.returned(recorder, module, inputs, output)
