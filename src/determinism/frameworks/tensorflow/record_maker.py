"""Makes the records of the thread that imported TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from types import FrameType

from tensorflow.python.eager import context, record

from determinism.frameworks.array_capture import Capture
from determinism.frameworks.attention import Attention
from determinism.frameworks.made_values import Value
from determinism.frameworks.named_stream import Stream
from determinism.frameworks.progress import Progress
from determinism.frameworks.tensorflow.graph_places import Place
from determinism.frameworks.tensorflow.op_call import OpCall
from determinism.frameworks.tensorflow.values import Values
from determinism.sites import NO_STACK
from determinism.types import Phase, Role

_NOWHERE = -1
_Here = tuple[Phase, str, int, int]
"""Phase, scope, and the numbers of the stacks of an op and of its forward op."""


class RecordMaker(Attention):
    """Knows where the thread stands, and writes down what it did there."""

    def __init__(self, *, paranoid: bool) -> None:
        """Make one that sleeps until `begin`.

        Args:
            paranoid: Digest every input of every op.
        """
        super().__init__()
        self.thread = get_ident()
        self._paranoid = paranoid
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.backward_depth = 0
        self.capture: Capture | None = None
        """Looks at every record before it is made; set in a further run that looks closely at one."""

    def begin(self, stream: Stream) -> None:
        """Record into a stream from now on."""
        self.stream = stream
        self.writer = stream.writer
        self._stacks: dict[int, tuple[Place, int, int]] = {}
        self.values = Values()
        self.progress = Progress(lambda counted_by: self.step_ended(counted_by))
        self.is_active = True

    def is_own(self) -> bool:
        """Whether this thread's ops are recorded, and something is to be recorded now."""
        return get_ident() == self.thread and self.is_ready()

    @property
    def phase(self) -> Phase:
        """What the program is doing outside of graphs."""
        if self.progress.optimizer_depth:
            return Phase.OPTIMIZER
        if self.backward_depth:
            return Phase.BACKWARD
        if self.progress.phase is Phase.INIT and record.could_possibly_record():
            self.progress.phase = Phase.FORWARD
        return self.progress.phase

    def emit(
        self,
        role: Role,
        name: str,
        read: Sequence[Value],
        made: Iterable[tuple[int, bytes]] = (),
        *,
        arguments: str = "",
        drawn: Sequence[bytes] = (),
        phase: Phase | None = None,
        call: Callable[[], OpCall] | None = None,
    ) -> int:
        """Add a record of what this thread does now; returns its number."""
        place = self.here(phase, sys._getframe(2))
        return self._append(role, place, name, arguments, read, made, drawn, call)

    def here(self, phase: Phase | None, frame: FrameType) -> _Here:
        """Where the program is now: phase, scope and stack."""
        scope = context.context().scope_name.rstrip("/")
        return self.phase if phase is None else phase, scope, self.stream.sites.stack(frame), NO_STACK

    def hold(self, held: Iterable[tuple[str, str, Value]]) -> None:
        """Record what the program holds now, at one place; each with the names of the record's op and of the variable."""
        place = self.here(Phase.OTHER, sys._getframe(1))
        for name, path, value in held:
            self._append(Role.HELD, place, name, path, (), [(value.layout, value.digest)], (), None)

    def write(
        self,
        role: Role,
        phase: Phase,
        name: str,
        place: Place,
        arguments: str,
        read: Sequence[Value],
        made: Iterable[tuple[int, bytes]],
        drawn: Sequence[bytes],
        call: Callable[[], OpCall] | None,
    ) -> None:
        """Add a record of an op in a graph; its line is the one that put the op there."""
        sites = self.stream.sites
        if place.frames:
            _, stack, forward = self._stacks.get(id(place)) or self._know(place)
        else:
            stack, forward = sites.stack(sys._getframe(2)), NO_STACK
        self._append(role, (phase, place.module, stack, forward), name, arguments, read, made, drawn, call)

    def _know(self, place: Place) -> tuple[Place, int, int]:
        """The numbers of the stacks of a place; holding it keeps its id its own."""
        sites = self.stream.sites
        stacks = sites.stack_of_places(place.frames), sites.stack_of_places(place.forward_frames)
        known = self._stacks[id(place)] = (place, *stacks)
        return known

    def _append(
        self,
        role: Role,
        place: _Here,
        name: str,
        arguments: str,
        read: Sequence[Value],
        made: Iterable[tuple[int, bytes]],
        drawn: Sequence[bytes],
        call: Callable[[], OpCall] | None,
    ) -> int:
        phase, module, stack, forward = place
        if self.capture is not None:
            self.capture.look(name, self.progress.step, phase, module, call)
        inputs, digests = self.values.unread.read(read, paranoid=self._paranoid)
        outputs: list[int | bytes] = []
        for made_one in made:
            outputs += made_one
        cells = (
            0, self.progress.step, phase, role, self.stream.op(name), self.stream.module(module), stack, _NOWHERE, forward,
            self.stream.arguments(arguments),
        )  # fmt: skip
        return self.writer.append(cells, inputs, digests, outputs, drawn)
