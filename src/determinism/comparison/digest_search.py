"""Finds out which streams of a run made certain values, or took them in, by their digests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import Table

_PLACES = ("outputs", "input_digests")


def is_in_place(op: str) -> bool:
    """Whether an op changes one of its arguments, by its name."""
    return op.partition(".")[0].endswith("_")


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

    def has_written(self, process: ProcessTrace, digest: bytes) -> bool:
        """Whether an op of a stream that changes a tensor in place left this digest there.

        Raises:
            TraceError: The trace is damaged.
        """
        return self._look(process, digest)[2]

    def _look(self, process: ProcessTrace, digest: bytes) -> tuple[bool, ...]:
        self._wanted.add(digest)
        known = self._found.setdefault(process, {})
        if digest not in known:
            unknown = self._wanted - known.keys()
            found = _found(process, unknown)
            known.update({one: tuple(one in there for there in found) for one in unknown})
        return known[digest]


def _found(process: ProcessTrace, wanted: set[bytes]) -> tuple[set[bytes], ...]:
    """Those of the digests that stand in each of the places, and in outputs of ops that change a tensor in place."""
    heads = np.frombuffer(b"".join(digest[:8] for digest in wanted), dtype=np.uint64)
    writing = [number for number, name in enumerate(process.names.texts(Table.OP)) if is_in_place(name)]
    made, taken, written = set[bytes](), set[bytes](), set[bytes]()
    for chunk in process.chunks():
        for place, there in zip(_PLACES, (made, taken), strict=True):
            digests = chunk.children[place].columns["digest"]
            there.update(row.tobytes() for row in digests[np.isin(digests[:, 0], heads)])
        outputs = chunk.children["outputs"]
        by_writing = np.repeat(np.isin(chunk.columns["op"], writing), np.diff(outputs.starts))
        digests = outputs.columns["digest"][by_writing]
        written.update(row.tobytes() for row in digests[np.isin(digests[:, 0], heads)])
    return made & wanted, taken & wanted, written & wanted
