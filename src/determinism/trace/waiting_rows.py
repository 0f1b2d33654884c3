"""Records of which a digest is still being made.

They lie in the spool like all others, with zeros in the place of the digest, and the spool counts neither them nor those
that came after until the digest is there. So the order of records stays that of the program, what waits takes no memory beside the
spool, and whoever reads the spool, also after the process was killed, never sees a record that is not whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from determinism.trace.spool import Spool
from determinism.types import NO_DIGEST


class PendingDigest:
    """Stands in a record for a digest that is still being made."""

    def ready(self) -> bytes | None:
        """The digest if it is there; does not wait.

        Raises:
            DigestLost: It will never be.
        """
        raise NotImplementedError

    def wait(self) -> bytes:
        """The digest, as soon as it is there.

        Raises:
            DigestLost: It will never be.
        """
        raise NotImplementedError


class DigestLost(Exception):
    """What was to make a digest failed."""


def settled(digest: bytes | PendingDigest) -> bytes:
    """A digest that may still have to be waited for."""
    return digest.wait() if isinstance(digest, PendingDigest) else digest


class WaitingRows:
    """Stands between a writer and its spool."""

    def __init__(self, spool: Spool, lost: Callable[[str], None]) -> None:
        """Take both.

        Args:
            spool: Takes the records.
            lost: Called with the reason for each digest that will never be there; its record holds none then.
        """
        self._spool = spool
        self._lost = lost
        self._waiting: deque[tuple[int, list[tuple[str, int, PendingDigest]]]] = deque()

    def store(
        self,
        cells: tuple[int, ...],
        inputs: Sequence[int],
        input_digests: Sequence[Any],
        outputs: Sequence[Any],
        generators: Sequence[bytes],
    ) -> bool:
        """Store a record as `Spool.append` does, in which digests may be pending ones."""
        self.advance()
        spool, places = self._spool, list[tuple[str, int, PendingDigest]]()
        input_digests = _without_pending(input_digests, "input_digests", spool.num_input_digests, places)
        outputs = _without_pending(outputs, "outputs", spool.num_outputs, places)
        if not places:
            return spool.append(cells, inputs, input_digests, outputs, generators)
        spool.hold()
        row = spool.num_records
        if not spool.append(cells, inputs, input_digests, outputs, generators):
            self._count()
            return False
        self._waiting.append((row, places))
        return True

    def advance(self) -> None:
        """Put the digests that have come meanwhile in their places, as far as those before them have come too."""
        if not self._waiting:
            return
        while self._waiting:
            places = self._waiting[0][1]
            while places:
                digest = self._of(places[-1][2].ready)
                if digest is None:
                    self._count()
                    return
                self._put(places.pop(), digest)
            self._waiting.popleft()
        self._count()

    def settle(self) -> None:
        """Wait for all digests."""
        while self._waiting:
            _, places = self._waiting[0]
            while places:
                self._put(places[-1], self._of(places[-1][2].wait) or NO_DIGEST)
                places.pop()
            self._waiting.popleft()
        self._count()

    def _put(self, place: tuple[str, int, PendingDigest], digest: bytes) -> None:
        self._spool.set_digest(place[0], place[1], digest)

    def _of(self, ask: Callable[[], bytes | None]) -> bytes | None:
        try:
            return ask()
        except DigestLost as error:
            self._lost(str(error))
            return NO_DIGEST

    def _count(self) -> None:
        """Let the spool count the records before the first one that waits."""
        if self._waiting:
            self._spool.count_to(self._waiting[0][0])
        else:
            self._spool.release()


def _without_pending(
    cells: Sequence[Any], group: str, first: int, places: list[tuple[str, int, PendingDigest]]
) -> Sequence[Any]:
    """Cells of a list with zeros for the digests that are pending; adds the places of those to `places`."""
    found = [(group, first + at, digest) for at, digest in enumerate(cells[1::2]) if isinstance(digest, PendingDigest)]
    if not found:
        return cells
    places += found
    return [NO_DIGEST if isinstance(cell, PendingDigest) else cell for cell in cells]
