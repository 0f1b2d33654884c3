"""The values that were kept of one process, as a comparison comes to them."""

from __future__ import annotations

from determinism.comparison.differences import producers
from determinism.comparison.sampled_difference import Sample
from determinism.trace.chunk import Chunk
from determinism.trace.kept_values import Place, ValuesReader
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import Table


class ValueSide:
    """The kept values of one run, of the records at hand and of what is held since earlier ones."""

    def __init__(self, process: ProcessTrace) -> None:
        """Take the process."""
        self.names = process.names
        self._reader = ValuesReader(process.folder)
        self._held: dict[Place, Sample] = {}
        self._chunk: Chunk | None = None
        self._new: dict[Place, bytes] = {}

    def load(self, chunk: Chunk) -> None:
        """Take the values of the next records."""
        self._chunk = chunk
        self._new = self._reader.between(chunk.first, chunk.first + chunk.rows) if chunk.rows else {}

    def sample(self, place: Place) -> Sample | None:
        """What was kept of an output; None if nothing was, or if it is not at hand."""
        elements = self._new.get(place)
        if elements is None or self._chunk is None:
            return self._held.get(place)
        outputs = self._chunk.children["outputs"]
        row = place[0] - self._chunk.first
        at = int(outputs.starts[row]) + place[1]
        if at >= int(outputs.starts[row + 1]):
            # No such output was recorded: the file was damaged.
            return None
        layout = self.names.layout(int(outputs.columns["layout"][at]))
        return None if layout is None else Sample(layout, elements)

    def hold(self, places: list[Place]) -> None:
        """Keep what these places have until the next call."""
        found = [(place, self.sample(place)) for place in places]
        self._held = {place: sample for place, sample in found if sample is not None}

    def read_by(self, row: int) -> list[Place]:
        """Where the inputs of a record at hand come from; a record of -1 stands for outside."""
        assert self._chunk is not None
        inputs = self._chunk.children["inputs"]
        start, end = int(inputs.starts[row]), int(inputs.starts[row + 1])
        sources = producers(self._chunk)[start:end].tolist()
        return list(zip(sources, inputs.columns["output"][start:end].tolist(), strict=True))

    def text(self, table: Table, column: str, row: int) -> str:
        """A name of a record at hand."""
        assert self._chunk is not None
        return self.names.text(table, int(self._chunk.columns[column][row])) or ""
