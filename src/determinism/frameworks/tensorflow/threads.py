"""Says which threads of the program use TensorFlow besides the one that is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context

from determinism.frameworks.tensorflow.recorder import Recorder
from determinism.frameworks.unrecorded_threads import UnrecordedThreads
from determinism.frameworks.wrapping import Undo, wrap

_REASON = "ops of threads other than the one that imported TensorFlow are not recorded"


class OtherThreads:
    """Notes each thread that runs an op, once."""

    def __init__(self, recorder: Recorder, note_racy: Callable[[str], None]) -> None:
        """Take what keeps blind spots, and what is told that threads take part."""
        self._recorder = recorder
        self._threads = UnrecordedThreads(_REASON, lambda: recorder.writer if recorder.is_active else None, note_racy)

    def install(self) -> Undo:
        """Listen in every thread that starts from now on; returns what ends that."""

        def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
            # TensorFlow keeps its callbacks per thread.
            context.context()._thread_local_data.op_callbacks.append(self._op_ran)
            return original(thread)

        return wrap(threading.Thread, "_bootstrap_inner", around)

    def _op_ran(self, *_: Any, **__: Any) -> None:
        self.used()

    def used(self) -> None:
        """This thread ran an op or a function."""
        if threading.get_ident() != self._recorder.thread:
            self._threads.used()
