"""Turns every op that runs eagerly, and every function that is called eagerly, into records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any

from tensorflow.python.eager import context, record
from tensorflow.python.framework import dtypes

from determinism.frameworks.attention import Attention
from determinism.frameworks.progress import Progress
from determinism.frameworks.tensorflow import op_traits
from determinism.frameworks.tensorflow.capture import Capture
from determinism.frameworks.tensorflow.draws import drawn_from
from determinism.frameworks.tensorflow.function_calls import FunctionCalls
from determinism.frameworks.tensorflow.graph_attributes import eager_argument_text
from determinism.frameworks.tensorflow.graph_places import Place
from determinism.frameworks.tensorflow.keras_seeds import KerasSeeds
from determinism.frameworks.tensorflow.op_call import OpCall, eager_call
from determinism.frameworks.tensorflow.pipelines import Pipelines
from determinism.frameworks.tensorflow.stream import Stream
from determinism.frameworks.tensorflow.tensor_bytes import device_name, digest_tensor, has_value
from determinism.frameworks.tensorflow.values import EXTERNAL, Resource, Value, Values, Variables
from determinism.frameworks.tensorflow.variable_contents import content_of, is_read_from
from determinism.sites import NO_STACK
from determinism.types import Access, Phase, Role

_READ = int(Access.READ)
_NOWHERE = -1
_Here = tuple[Phase, str, int, int]
"""Phase, scope, and the numbers of the stacks of an op and of its forward op."""


class Recorder(Attention):
    """Records what the thread that imported TensorFlow does."""

    def __init__(self, *, tracks_ops: bool, paranoid: bool) -> None:
        """Make one that sleeps until `begin`.

        Args:
            tracks_ops: Whether ops are recorded, or only what is held at the ends of steps.
            paranoid: Digest every input of every op.
        """
        super().__init__()
        self.tracks_ops = tracks_ops
        self.thread = get_ident()
        self.device = "CPU:0"
        self._paranoid = paranoid
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.backward_depth = 0
        self.arrived: Callable[[], None] = lambda: None
        """Called when a batch came in."""
        self.capture: Capture | None = None
        """Looks at every record before it is made; set in a further run that looks closely at one."""
        self.note_racy: Callable[[str], None] = lambda what: None
        """Told what may go otherwise in the next run."""

    def begin(self, stream: Stream) -> None:
        """Record into a stream from now on."""
        self.stream = stream
        self.writer = stream.writer
        self._stacks: dict[int, tuple[Place, int, int]] = {}
        self.values = Values()
        self.variables = Variables()
        self.calls = FunctionCalls(self)
        self.keras_seeds = KerasSeeds(self)
        self.pipelines = Pipelines(self.note_racy)
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

    def failed_to_hook(self, reason: str) -> None:
        """A module of the program's libraries could not be followed."""
        self.failed("optimizers of Keras", RuntimeError(reason))

    def op_ran(
        self, op_type: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        """An op ran eagerly, or was added to a graph; the latter is looked at when its function runs."""
        if graph is not None or self._is_busy or not self.is_own():
            return
        kind = op_type.decode() if isinstance(op_type, bytes) else op_type
        if kind in op_traits.UNRECORDED or kind.startswith("__"):
            return
        self._is_busy = True
        try:
            with record.stop_recording():
                self._ran(kind, inputs or (), attributes, outputs or ())
        except Exception as error:
            self.failed(f"tf::{kind}", error)
        finally:
            self._is_busy = False

    def _ran(self, kind: str, inputs: Sequence[Any], attributes: Any, outputs: Any) -> None:
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        if kind == "ReadVariableOp":
            self._read_variable(inputs[0], outputs[0])
            return
        if kind in op_traits.PASSING:
            for given, made in zip(inputs, outputs, strict=False):
                if has_value(made.dtype):
                    self.values.made(made, self.value(given))
            return
        if kind == "MakeIterator":
            self.pipelines.iterator_made(inputs)
            return
        if any(tensor.dtype is dtypes.variant for tensor in outputs) and op_traits.is_dataset(kind):
            self.pipelines.stage_made(kind, inputs, attributes, outputs)
            return
        written = (
            [self.resource(t) for t in inputs if t.dtype is dtypes.resource] if op_traits.writes_variables(kind) else []
        )
        read = [value for tensor in inputs if (value := self.value_or_none(tensor)) is not None]
        if written and kind != "AssignVariableOp":
            read += [held for one in written if (held := self.variables.get(one.key)) is not None]
        valued = [tensor for tensor in outputs if has_value(tensor.dtype)]
        made = [(self.layout(tensor), digest_tensor(tensor)) for tensor in valued]
        held_now = [self.read_variable(one) for one in written]
        made += [held for held in held_now if held is not None]
        role = op_traits.role_of(kind, has_inputs=bool(read))
        if role is Role.BATCH:
            self.arrived()
        if not made and role is Role.OP:
            return
        drawn = drawn_from(kind, read, made)
        text = self._stages_before(inputs) if role is Role.BATCH else eager_argument_text(attributes)
        call = partial(eager_call, kind, inputs, attributes, valued)
        number = self.emit(role, f"tf::{kind}", read, made, arguments=text, drawn=drawn, call=call)
        for position, tensor in enumerate(valued):
            self.values.made(tensor, Value(number, position, *made[position]))
        position = len(valued)
        for one, content in zip(written, held_now, strict=True):
            if content is not None:
                self.variables.wrote(one, Value(number, position, *content))
                position += 1

    def _stages_before(self, inputs: Sequence[Any]) -> str:
        handles = [tensor for tensor in inputs if tensor.dtype is dtypes.resource]
        return self.pipelines.stages_of(handles[0]._id) if handles else ""

    def _read_variable(self, handle: Any, made: Any) -> None:
        resource = self.resource(handle)
        held = self.variables.get(resource.key)
        if held is None:
            held = Value(EXTERNAL, 0, self.layout(made), digest_tensor(made))
            self.variables.wrote(resource, held)
        self.values.made(made, held)

    def layout(self, tensor: Any) -> int:
        """The number of an eager tensor's layout."""
        return self.stream.layout(tensor.dtype.name, tensor.shape, device_name(tensor.device))

    def value(self, tensor: Any) -> Value:
        """What an eager tensor holds, and who made it; what nobody is known to have made is digested now."""
        known = self.values.get(tensor)
        if known is not None:
            return known
        digest = digest_tensor(tensor)
        value = self._held_by_variable(tensor, digest) or self.keras_seeds.behind(tensor)
        value = value or Value(EXTERNAL, 0, self.layout(tensor), digest)
        self.values.made(tensor, value)
        return value

    def value_or_none(self, tensor: Any) -> Value | None:
        """What an eager tensor holds; None if it holds nothing that can be looked at."""
        return self.value(tensor) if has_value(tensor.dtype) else self.values.get(tensor)

    def _held_by_variable(self, tensor: Any, digest: bytes) -> Value | None:
        """The value of the variable that a tensor was read from: reading one within an op makes a tensor unseen."""
        handle = self.variables.holding(digest)
        return self.variables.get(handle._id) if handle is not None and is_read_from(tensor, handle) else None

    def resource(self, handle: Any) -> Resource:
        """What a handle leads to."""
        return Resource(handle._id, handle)

    def held_by(self, tensor: Any) -> Value | Resource | None:
        """What an argument of a function holds; None for what cannot be looked at."""
        if has_value(tensor.dtype):
            return self.value(tensor)
        if tensor.dtype is not dtypes.resource:
            return self.values.get(tensor)
        resource = self.resource(tensor)
        if self.variables.get(resource.key) is None and (held := self.read_variable(resource)) is not None:
            self.variables.wrote(resource, Value(EXTERNAL, 0, *held))
        return resource

    def read_variable(self, resource: Resource) -> tuple[int, bytes] | None:
        """Layout and digest of what a variable holds now; None if it is none, or holds nothing yet."""
        tensor = content_of(resource.handle)
        return None if tensor is None else (self.layout(tensor), digest_tensor(tensor))

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
        inputs: list[int] = []
        digests: list[int | bytes] = []
        for position, value in enumerate(read):
            inputs += (value.record, value.output, _READ, value.layout)
            self.values.was_read(value)
            if value.record == EXTERNAL or self._paranoid:
                digests += (position, value.digest)
        outputs: list[int | bytes] = []
        for made_one in made:
            outputs += made_one
        cells = (
            0, self.progress.step, phase, role, self.stream.op(name), self.stream.module(module), stack, _NOWHERE, forward,
            self.stream.arguments(arguments),
        )  # fmt: skip
        return self.writer.append(cells, inputs, digests, outputs, drawn)
