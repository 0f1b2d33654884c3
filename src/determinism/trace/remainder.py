"""The records of a process from one of them on, as if it had begun there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from determinism.trace.chunk import Array, Children, Chunk, cut
from determinism.trace.decoder import Decoder
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import NONE
from determinism.types import NO_DIGEST, Phase


class Remainder(ProcessTrace):
    """A process without its first records; the rest are numbered from 0.

    What was made before is an input without a producer, with the digest of what the producer left, as far as that was read as a whole.
    """

    def __init__(
        self,
        process: ProcessTrace,
        start: int,
        *,
        steps_before: int = 0,
        forward_until: int = 0,
        unseen: Sequence[int] = (),
        skipped: Sequence[int] = (),
        without: Mapping[int, Array] | None = None,
    ) -> None:
        """Take the rest of a process.

        Args:
            process: The whole of it.
            start: Number of the first record that counts.
            steps_before: Added to the number of each step.
            forward_until: Number of a record (of the whole process). What comes before it in no phase of its own belongs to the forward.
            unseen: Numbers of later records (of the whole process) of which the others know no more than of what was made before.
            skipped: Numbers of such records that are no part of what the others did either. Nothing is left of them but their place: they
                have neither inputs nor outputs, and no thread, so that nothing pairs with them.
            without: By the number of a record (of the whole process) the positions of inputs that do not count. Such a record has no
                arguments, since they name what it read.

        Raises:
            TraceError: The trace is damaged.
        """
        super().__init__(process.folder)
        self.start = start
        self._steps_before = steps_before
        self._forward_until = forward_until
        self._unseen = np.array([*unseen, *skipped], dtype=np.int64)
        self.skipped: Array = np.array(skipped, dtype=np.int64)
        self._without = dict(without or {})
        self._left: dict[tuple[int, int], tuple[int, bytes]] = {}

    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Every record in order from the first that counts."""
        for chunk in super().chunks(decoder):
            if chunk.first + chunk.rows > self.start:
                yield self._seen(cut(chunk, max(self.start - chunk.first, 0), chunk.rows))

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record and its position there; `chunks` must have passed it."""
        chunk, row = super().record(number + self.start)
        before = max(self.start - chunk.first, 0)
        return self._seen(cut(chunk, before, chunk.rows)), row - before

    def _seen(self, chunk: Chunk) -> Chunk:
        """Records with numbers from 0, that know of nothing before."""
        chunk = self._bared(chunk)
        inputs, digests = self._detached(chunk)
        forward = chunk.columns["forward"]
        phase = chunk.columns["phase"]
        is_forward = (chunk.numbers < self._forward_until) & np.isin(phase, (Phase.INIT, Phase.OTHER))
        columns = {
            **chunk.columns,
            "phase": np.where(is_forward, Phase.FORWARD, phase).astype(phase.dtype),
            "step": chunk.columns["step"] + np.int32(self._steps_before),
            "forward": np.where(chunk.first + np.arange(chunk.rows) - forward < self.start, 0, forward).astype(
                np.int32
            ),
        }
        children = {**chunk.children, "inputs": inputs, "input_digests": digests}
        if (is_skipped := np.isin(chunk.numbers, self.skipped)).any():
            columns["thread"] = np.where(is_skipped, NONE, columns["thread"]).astype(np.int32)
            children = {
                name: _only(entries, np.repeat(~is_skipped, np.diff(entries.starts)))
                for name, entries in children.items()
            }
        return replace(chunk, first=chunk.first - self.start, columns=columns, children=children)

    def _bared(self, chunk: Chunk) -> Chunk:
        """The records without the inputs that do not count."""
        rows = [n - chunk.first for n in self._without if 0 <= n - chunk.first < chunk.rows]
        if not rows:
            return chunk
        inputs, digests = chunk.children["inputs"], chunk.children["input_digests"]
        kept = np.ones(int(inputs.starts[-1]), dtype=bool)
        for row in rows:
            kept[inputs.starts[row] + self._without[chunk.first + row]] = False
        before = np.concatenate([[0], np.cumsum(kept)])
        owner = np.repeat(np.arange(chunk.rows), np.diff(digests.starts))
        place = inputs.starts[owner] + digests.columns["position"]
        positions = (before[place] - before[inputs.starts[owner]]).astype(digests.columns["position"].dtype)
        digested = _only(digests._replace(columns={**digests.columns, "position": positions}), kept[place])
        arguments = chunk.columns["arguments"].copy()
        arguments[rows] = NONE
        children = {**chunk.children, "inputs": _only(inputs, kept), "input_digests": digested}
        return replace(chunk, columns={**chunk.columns, "arguments": arguments}, children=children)

    def _detached(self, chunk: Chunk) -> tuple[Children, Children]:
        inputs, digests = chunk.children["inputs"], chunk.children["input_digests"]
        distance = inputs.columns["producer"]
        owner = np.repeat(np.arange(chunk.rows), np.diff(inputs.starts))
        producers = chunk.first + owner - distance
        before = (distance != 0) & ((producers < self.start) | np.isin(producers, self._unseen))
        if not before.any():
            return inputs, digests
        digested = np.repeat(np.arange(chunk.rows), np.diff(digests.starts))
        known = set(zip(digested.tolist(), digests.columns["position"].tolist(), strict=True))
        found: list[tuple[int, int, bytes]] = []
        for at in np.flatnonzero(before):
            row, position = int(owner[at]), int(at - inputs.starts[owner[at]])
            layout, digest = self._output(chunk.first + row - int(distance[at]), int(inputs.columns["output"][at]))
            if digest != NO_DIGEST and layout == int(inputs.columns["layout"][at]) and (row, position) not in known:
                found.append((row, position, digest))
        cells = {**inputs.columns, "producer": np.where(before, 0, distance).astype(distance.dtype)}
        return Children(inputs.starts, cells), _with(digests, digested, found)

    def _output(self, number: int, output: int) -> tuple[int, bytes]:
        """Layout and digest of what a record left."""
        if (number, output) not in self._left:
            chunk, row = super().record(number)
            outputs = chunk.children["outputs"]
            at = int(outputs.starts[row]) + output
            if at >= int(outputs.starts[row + 1]):
                return -1, NO_DIGEST
            self._left[number, output] = int(outputs.columns["layout"][at]), outputs.columns["digest"][at].tobytes()
        return self._left[number, output]


def _only(entries: Children, kept: Array) -> Children:
    """Some of the entries, by a mask."""
    starts = np.concatenate([[0], np.cumsum(kept)])[entries.starts]
    return Children(starts, {name: cells[kept] for name, cells in entries.columns.items()})


def _with(digests: Children, owner: Array, found: list[tuple[int, int, bytes]]) -> Children:
    """Digests of inputs with more of them, in the order of records and positions."""
    if not found:
        return digests
    rows = np.concatenate([owner, [row for row, _, _ in found]]).astype(np.int64)
    position = digests.columns["position"]
    positions = np.concatenate([position, [at for _, at, _ in found]]).astype(position.dtype)
    made = np.frombuffer(b"".join(digest for _, _, digest in found), dtype=np.uint64).reshape(-1, 2)
    cells = np.concatenate([digests.columns["digest"].reshape(-1, 2), made])
    order = np.lexsort((positions, rows))
    starts = np.searchsorted(rows[order], np.arange(len(digests.starts)))
    return Children(starts, {"position": positions[order], "digest": cells[order]})
