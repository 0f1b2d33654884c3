"""Threads beside the one that is recorded: their ops are counted, so that the report can say what was not seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from determinism.frameworks.torch.compiler import unwrap_handler
from determinism.frameworks.torch.wrapping import Undo, wrap
from determinism.trace.writer import ProcessWriter

_REASON = "ops of threads other than the one that imported the framework are not recorded"


class ThreadWatch(TorchDispatchMode):
    """Counts the ops of one thread as a blind spot."""

    supports_higher_order_operators = True

    def __init__(self, writer: ProcessWriter, name: str) -> None:
        super().__init__()
        self._writer = writer
        self._name = name

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave `torch.compile` as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._writer.blind_spot("thread", self._name, _REASON)
        return func(*args, **(kwargs or {}))


unwrap_handler(ThreadWatch)


def install(writer: ProcessWriter) -> Undo:
    """Watch every thread that starts from now on; returns what ends that."""

    def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
        # Threads count by the sort of their name: numbers in names depend on what else was started.
        _push_mode(ThreadWatch(writer, thread.name.rstrip("0123456789-_ ") or "unnamed"))
        try:
            original(thread)
        finally:
            _pop_mode()

    return wrap(threading.Thread, "_bootstrap_inner", around)
