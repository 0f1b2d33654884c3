"""The recorders of a process: that of its main thread, and one for each other thread while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch.utils._python_dispatch import _pop_mode, _push_mode

from determinism.frameworks.progress import ThreadProgress
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.stream import Stream
from determinism.frameworks.torch.thread_edges import ThreadEdges
from determinism.frameworks.wrapping import Undo, wrap
from determinism.sites import frame_text, innermost_user_frame

_SERVING = ("multiprocessing.queues", "torch.utils.data._utils.pin_memory")
"""Modules whose threads only carry tensors from one process to another."""
_MOST_NAMES = 256
_MADE_AT = "_determinism_made_at"


class Threads:
    """Knows the recorder of every thread. All threads but the main one share a stream, which is not in an order."""

    def __init__(self, main: Recorder, open_stream: Callable[[], Stream | None]) -> None:
        """Take the recorder of the thread that calls this, and what makes the stream of all others."""
        self.main = main
        self.step_ended: Callable[[Recorder, str], None] = lambda recorder, counted_by: None
        self._open_stream = open_stream
        self._stream: Stream | None = None
        self._names: list[str] = []
        self._made_at: list[str] = []
        self._by_thread: dict[int, Recorder] = {main.thread: main}
        self._lock = threading.Lock()

    @property
    def stream(self) -> Stream | None:
        """The stream of the threads other than the main one, once one of them did something."""
        return self._stream

    def recorder(self) -> Recorder | None:
        """The recorder of this thread, ready to record; None if nothing is to be recorded now."""
        ident = get_ident()
        recorder = self._by_thread.get(ident)
        if recorder is None:
            if any(thread.ident == ident for thread in threading.enumerate()):
                return None
            # A thread of the framework works for the thread that called it.
            recorder = self.main
        return recorder if recorder.is_ready() else None

    def install(self) -> Undo:
        """Record every thread that starts from now on; returns what ends that."""

        def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
            target = getattr(thread, "_target", None)
            if getattr(target, "__module__", None) in _SERVING:
                return original(thread)
            recorder = Recorder(tracks_ops=self.main.tracks_ops, paranoid=self.main.paranoid)
            recorder.wake = self._begin(thread.name, vars(thread).get(_MADE_AT, ""))
            self._by_thread[get_ident()] = recorder
            if recorder.tracks_ops:
                _push_mode(recorder)
            try:
                return original(thread)
            finally:
                if recorder.tracks_ops:
                    _pop_mode()
                self._by_thread.pop(get_ident(), None)

        def made(original: Callable[..., None], thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
            original(thread, *args, **kwargs)
            vars(thread)[_MADE_AT] = frame_text(innermost_user_frame())

        undo_start, undo_making = (
            wrap(threading.Thread, name, wrapper)
            for name, wrapper in (("_bootstrap_inner", around), ("__init__", made))
        )

        def undo() -> None:
            undo_making()
            undo_start()

        return undo

    def _begin(self, name: str, made_at: str) -> Callable[[Recorder], None]:
        def begin(recorder: Recorder) -> None:
            if not self.main.is_ready():
                return
            recorder.wake = None
            with self._lock:
                if self._stream is None:
                    self._stream = self._open_stream()
                stream = self._stream
                if stream is None:
                    return
                number = len(self._names) + 1
                self._names.append(name)
                self._made_at.append(made_at)
                if number <= _MOST_NAMES:
                    stream.writer.describe(
                        threads=self._names[:_MOST_NAMES], threads_made_at=self._made_at[:_MOST_NAMES]
                    )
            self._attach(recorder, stream, number)

        return begin

    def _attach(self, recorder: Recorder, stream: Stream, number: int) -> None:
        main = self.main
        recorder.step_ended = lambda counted_by: self.step_ended(recorder, counted_by)
        recorder.capture = main.capture
        recorder.begin(
            stream,
            number=number,
            edges=lambda leaf_read: ThreadEdges(stream, main.stream.storages, leaf_read, paranoid=recorder.paranoid),
            progress=lambda step_ended: ThreadProgress(main.progress, step_ended),
        )

    def forked(self) -> Recorder:
        """This is a forked child: only the thread that forked goes on, and is the main one; returns its recorder."""
        main = self._by_thread.get(get_ident())
        if main is None:
            main = Recorder(tracks_ops=self.main.tracks_ops, paranoid=self.main.paranoid)
            if main.tracks_ops:
                _push_mode(main)
        self.main = main
        self._by_thread = {get_ident(): main}
        self._stream = None
        self._names = []
        self._lock = threading.Lock()
        return main

    def earlier_threads(self) -> list[str]:
        """Names of the threads that run and have no recorder."""
        return [thread.name for thread in threading.enumerate() if thread.ident not in self._by_thread]

    def end(self) -> None:
        """Stop recording in every thread, and finish the files."""
        began = self.main.is_active
        for recorder in list(self._by_thread.values()):
            recorder.is_active = False
            recorder.wake = None
        if self._stream is not None:
            writer = self._stream.writer
            writer.describe(records=writer.num_records, steps=0)
            writer.close()
        if began:
            self.main.writer.close()
