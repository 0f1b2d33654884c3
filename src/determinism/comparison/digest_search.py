"""Finds out which streams of a run made certain values, or took them in, by their digests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from determinism.trace.reader import ProcessTrace

_PLACES = ("outputs", "input_digests")


class DigestSearch:
    """Remembers what it found, since looking for digests reads a whole stream."""

    def __init__(self) -> None:
        self._found: dict[ProcessTrace, dict[bytes, tuple[bool, ...]]] = {}
        self._wanted: set[bytes] = set()

    def expect(self, digests: Iterable[bytes]) -> None:
        """Say what will be looked for, so that a stream need not be read again for each."""
        self._wanted.update(digests)

    def has_made(self, process: ProcessTrace, digest: bytes) -> bool:
        """Whether an op of a stream gave an output with this digest.

        Raises:
            TraceError: The trace is damaged.
        """
        return self._look(process, digest)[0]

    def has_taken(self, process: ProcessTrace, digest: bytes) -> bool:
        """Whether an op of a stream got an input with this digest that no op of the stream had made.

        Raises:
            TraceError: The trace is damaged.
        """
        return self._look(process, digest)[1]

    def _look(self, process: ProcessTrace, digest: bytes) -> tuple[bool, ...]:
        self._wanted.add(digest)
        known = self._found.setdefault(process, {})
        if digest not in known:
            unknown = self._wanted - known.keys()
            found = _found(process, unknown)
            known.update({one: tuple(one in there for there in found) for one in unknown})
        return known[digest]


def _found(process: ProcessTrace, wanted: set[bytes]) -> tuple[set[bytes], ...]:
    """Those of the digests that stand in each of the places."""
    heads = np.frombuffer(b"".join(digest[:8] for digest in wanted), dtype=np.uint64)
    found: tuple[set[bytes], ...] = tuple(set() for _ in _PLACES)
    for chunk in process.chunks():
        for place, there in zip(_PLACES, found, strict=True):
            digests = chunk.children[place].columns["digest"]
            there.update(row.tobytes() for row in digests[np.isin(digests[:, 0], heads)])
    return tuple(there & wanted for there in found)
