"""Threads that started before recording are one blind spot."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from determinism.frameworks.progress import note_earlier_threads, program_threads


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], None),
        (["reader"], ("reader", "it began before the framework was imported, and its ops are not recorded")),
        (["a", "b"], ("a, b", "they began before the framework was imported, and their ops are not recorded")),
        (
            [*"abcdefghij"],
            (
                "a, b, c, d, e, f, g, h and 2 more",
                "they began before the framework was imported, and their ops are not recorded",
            ),
        ),
    ],
)
def test_threads_are_reported_as_one(names: list[str], told: tuple[str, str] | None) -> None:
    spots: list[tuple[str, str]] = []

    class Writer:
        def blind_spot(self, identifier: str, what: str, reason: str) -> None:
            spots.append((what, reason))

    note_earlier_threads(Writer(), names)  # type: ignore[arg-type]
    assert spots == ([] if told is None else [told])


KERNEL = """
import threading
class IOPubThread:
    def __init__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="IOPub", daemon=True)
    def _run(self):
        self.ended.wait()
class Heartbeat(threading.Thread):
    def run(self):
        self.ended.wait()
class SubshellThread(Heartbeat):
    pass
"""


@pytest.mark.parametrize("module", ["ipykernel.threads", "ray._private.gc_collect_manager"])
def test_threads_of_a_service_are_not_threads_of_the_program(module: str) -> None:
    kernel: dict[str, Any] = {"__name__": module}
    exec(KERNEL, kernel)
    served = kernel["IOPubThread"]()
    heartbeat, subshell = kernel["Heartbeat"](name="Heartbeat"), kernel["SubshellThread"](name="subshell")
    own = threading.Thread(target=served.ended.wait, name="reader", daemon=True)
    threads = [served.thread, heartbeat, subshell, own]
    for thread in threads:
        thread.ended = served.ended
        thread.daemon = True
        thread.start()
    try:
        named = program_threads({threading.get_ident()})
    finally:
        served.ended.set()
    # Cells run in subshells.
    assert {"subshell", "reader"} <= set(named)
    assert not {"IOPub", "Heartbeat"} & set(named)
