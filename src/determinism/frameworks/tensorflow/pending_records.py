"""Records of one call of a function, until it is known what the variables hold that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.tensorflow.graph_places import Place
from determinism.frameworks.tensorflow.op_call import OpCall
from determinism.frameworks.tensorflow.values import Resource
from determinism.types import Phase, Role

if TYPE_CHECKING:
    from determinism.frameworks.tensorflow.recorder import Recorder


_Record = tuple[
    Role, Phase, str, Place, str, Sequence[Value], list[tuple[int, bytes]], Sequence[bytes], Callable[[], OpCall] | None
]


class PendingRecords:
    """Takes the records of one call, in the order of the program, and then hands them over."""

    def __init__(self, recorder: Recorder) -> None:
        """Begin, behind the records that the recorder has made."""
        self._recorder = recorder
        self._first = recorder.writer.num_records
        self._records: list[_Record] = []
        self._held: dict[int, Value] = {}
        """What variables hold at this point of the call, where it wrote them."""
        self._written: dict[int, Resource] = {}
        self._open: dict[int, tuple[Resource, Value]] = {}
        """Variables whose content is known only when the call is over."""
        self.value_layout = recorder.stream.value_layout
        self.keeps = recorder.capture is not None
        """Whether the contents of values are wanted, besides their digests."""
        self.kept: dict[tuple[bytes, int], Any] = {}
        """Contents by digest and layout."""

    def layout(self, dtype: str, shape: Sequence[int]) -> int:
        """The number of a layout, on the device that the program computes on."""
        return self._recorder.stream.layout(dtype, shape, self._recorder.device)

    def content(self, resource: Resource) -> Value:
        """What a variable holds at this point; what is no variable stands for nothing."""
        return self.content_or_none(resource) or Value(EXTERNAL, 0, self.value_layout, bytes(16))

    def content_or_none(self, resource: Resource) -> Value | None:
        """What a variable holds at this point; None for anything else."""
        return self._held.get(resource.key) or self._recorder.variables.get(resource.key)

    def is_variable(self, resource: Resource) -> bool:
        """Whether a handle is that of a variable."""
        return self.content_or_none(resource) is not None

    def stages_before(self, iterator: Resource) -> str:
        """The stages of the data pipeline before an iterator."""
        return self._recorder.pipelines.stages_of(iterator.key)

    def append(
        self,
        role: Role,
        phase: Phase,
        name: str,
        place: Place,
        arguments: str,
        read: Sequence[Value],
        made: Sequence[tuple[int, bytes]],
        drawn: Sequence[bytes],
        call: Callable[[], OpCall] | None = None,
    ) -> int:
        """Add a record; returns the number that it will have."""
        self._records.append((role, phase, name, place, arguments, tuple(read), list(made), drawn, call))
        return self._first + len(self._records) - 1

    def wrote(self, resource: Resource, value: Value, *, is_known: bool) -> None:
        """A record wrote a variable.

        Args:
            resource: Its handle.
            value: What it holds now; where that is not known, a digest of what went into it.
            is_known: Whether it is known.
        """
        self._held[resource.key] = value
        self._written[resource.key] = resource
        if is_known:
            self._open.pop(resource.key, None)
        else:
            self._open[resource.key] = (resource, value)

    def finish(self) -> None:
        """Look at the variables that were written last by an op whose result nobody saw, and hand the records over."""
        recorder = self._recorder
        for key, (resource, value) in self._open.items():
            held = recorder.read_variable(resource)
            if held is not None:
                layout, digest = held
                self._records[value.record - self._first][6][value.output] = (layout, digest)
                self._held[key] = value._replace(layout=layout, digest=digest)
        for record in self._records:
            recorder.write(*record)
        for key, value in self._held.items():
            recorder.variables.wrote(self._written[key], value)
