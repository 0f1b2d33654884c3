"""What comes out of queues that several threads or processes put into. There is no order to fix it to."""

from __future__ import annotations

from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.stable_text import partial_text
from determinism.probes.use import Use

SOURCE = "queue-order"


def _taken(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    text, is_whole = partial_text(result)
    use.note(lambda: text, partial=not is_whole)
    return result


FUNCTIONS = (
    *functions(SOURCE, _taken, "queue", "Queue.get Queue.get_nowait SimpleQueue.get SimpleQueue.get_nowait"),
    *functions(SOURCE, _taken, "multiprocessing.queues", "Queue.get Queue.get_nowait SimpleQueue.get"),
)
