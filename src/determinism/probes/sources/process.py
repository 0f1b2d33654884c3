"""Numbers that the system gives to processes and threads. Fixed, they are numbers that no process can have."""

from __future__ import annotations

import os
import threading
from typing import Any

from determinism.digest import digest_text
from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use
from determinism.process_name import own_name

SOURCE = "process-id"

_ABOVE_ALL = 1 << 30
"""Linux gives numbers up to 2**22 (proc(5), `pid_max`), so that a signal to one of ours reaches nobody."""
_threads: dict[int, int] = {}


def _process(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        name = "parent" if function is os.getppid else own_name("") or "main"
        result = _ABOVE_ALL + int.from_bytes(digest_text(name)[:2], "big")
    use.note(lambda: str(result))
    return result


def _thread(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result = _ABOVE_ALL + _threads.setdefault(threading.get_ident(), len(_threads))
    use.note(lambda: str(result))
    return result


FUNCTIONS = (
    *functions(SOURCE, _process, "os", "getpid getppid"),
    *functions(SOURCE, _thread, "threading", "get_ident get_native_id"),
)
