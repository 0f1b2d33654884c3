"""Writes, for each process, the notes about the sources that it used: one JSON document per line.

Each line is written immediately, so that a killed process leaves what it had noted. A forked child begins its own file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from determinism.digest import digest_text
from determinism.probes.rewrite import parsed
from determinism.process_name import own_name, possible_keys
from determinism.redaction import redacted
from determinism.run_spec import FIRST_NOTED, NOTES_SUFFIX

PARENT_VARIABLE = "DETERMINISM_PROBES_PROCESS"
"""Environment variable through which a process passes its key to its children."""

_MOST_NOTES = 100_000
_MOST_SHOWN = 160

_Key = tuple[str, str, str]


class Notes:
    """The notes of this process."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which must exist."""
        self._folder = folder
        self.recorded: Callable[[], tuple[str | None, int]] = lambda: (None, 0)
        """Returns the key of this process in the trace, None if it is not recorded, and how many records it has made."""
        self.origin: Callable[[Any], dict[str, Any]] | None = None
        """Returns, for a frame of a library, the fields to note about the line of the program that caused it."""
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._descriptor: int | None = None
        self._counts: dict[_Key, int] = {}
        self._written = 0

    def take(self, site: str, source: str, text: Callable[[], str | None], **details: Any) -> None:
        """Note one use of a source.

        Args:
            site: Text of the site.
            source: Identifier of the source.
            text: Returns a text for the value, the same in every run for the same value; None if there is none.
            **details: Further fields; callables are called for their values.
        """
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            with self._lock:
                self._take(site, source, text, details)
        except Exception:
            # The program continues as it would have without a note.
            return
        finally:
            self._busy.now = False

    def _take(self, site: str, source: str, text: Callable[[], str | None], details: dict[str, Any]) -> None:
        key = (site, source, _thread_name())
        occurrence = self._counts.get(key, 0)
        self._counts[key] = occurrence + 1
        is_sample = occurrence & (occurrence - 1) == 0
        if (occurrence >= FIRST_NOTED and not is_sample) or self._written >= _MOST_NOTES:
            return
        try:
            value = text()
        except Exception:
            value = None
        digest = None if value is None else digest_text(value).hex()
        shown = None if value is None else value[:_MOST_SHOWN]
        note = {**_described(key), "occurrence": occurrence, "number": self._written, "digest": digest, "shown": shown}
        process, records = self.recorded()
        if parsed(site).is_in_library and self.origin is not None:
            note |= self.origin(sys._getframe(2))
        more = {name: detail() if callable(detail) else detail for name, detail in details.items()}
        self._write({**note, "records": records, "recorded_as": process, **more})
        self._written += 1

    def not_probed(self, module: str, file: str, reason: str) -> None:
        """Note a module of the user that runs unprobed."""
        try:
            with self._lock:
                self._write({"unprobed": file, "module": module, "reason": reason})
        except Exception:
            return

    def drawn(self, generators: Mapping[str, str]) -> None:
        """Note the states of the global generators that the process drew from or seeded, as digests."""
        try:
            with self._lock:
                if generators:
                    self._write({"drawn": dict(generators)})
        except Exception:
            return

    def close(self) -> None:
        """Note how often each source was used."""
        try:
            with self._lock:
                for key, count in self._counts.items():
                    if count > FIRST_NOTED:
                        self._write({**_described(key), "count": count})
        except Exception:
            return

    def _write(self, document: dict[str, Any]) -> None:
        if self._descriptor is None:
            self._descriptor = self._claimed()
        os.write(self._descriptor, (json.dumps(document) + "\n").encode())

    def claim(self) -> None:
        """Begin the file now if no probed process started this one."""
        if PARENT_VARIABLE not in os.environ:
            self._descriptor = self._claimed()

    def _claimed(self) -> int:
        parent = os.environ.get(PARENT_VARIABLE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for key in possible_keys(parent, own_name(parent or "")):
            try:
                descriptor = os.open(self._folder / f"{key}{NOTES_SUFFIX}", flags, 0o600)
            except FileExistsError:
                continue
            os.environ[PARENT_VARIABLE] = key
            facts = {"process": key, "pid": os.getpid(), "command": redacted(sys.orig_argv)}
            os.write(descriptor, (json.dumps(facts) + "\n").encode())
            return descriptor
        raise AssertionError("the keys have no end")


def _described(key: _Key) -> dict[str, Any]:
    text, source, thread = key
    site = parsed(text)
    return {
        "source": source,
        **site.description,
        "thread": thread,
        **({"is_in_library": True} if site.is_in_library else {}),
    }


def _thread_name() -> str:
    # `current_thread` would create an object for a thread that Python does not know.
    thread = getattr(threading, "_active", {}).get(threading.get_ident())
    return "unknown" if thread is None else str(thread.name)
