"""Makes the records of ops: calls, places, and values that become known only later."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.framework import config, op_def_registry

from determinism.frameworks.array_capture import Call, Capture, NotWritable
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.named_stream import NamedLedger, Stream
from determinism.frameworks.progress import Progress, RecordingGuard
from determinism.frameworks.tensorflow.graphs import Place
from determinism.frameworks.tensorflow.ops import (
    LAYOUT_ONLY,
    Pipelines,
    Resource,
    Values,
    Variables,
    content_of,
    device_name,
    digest_tensor,
)
from determinism.sites import NO_STACK
from determinism.types import Phase, Role

# A call of an op as data: its arguments and attributes as JSON, from which a script can make it again.

_NUMBERS = "biufc"
"""Kinds of NumPy dtypes whose elements a file can hold; that of TensorFlow's own floats is `V`."""


def call_document(call: OpCall, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """A call as JSON.

    Args:
        call: The call.
        arrays: Its inputs in order, by the names that they are stored under.

    Raises:
        NotWritable: It has an input or an attribute that cannot be passed to a script.
    """
    names = list(arrays)
    for name, array in arrays.items():
        if array.dtype.kind not in _NUMBERS and not hasattr(tf.dtypes, array.dtype.name):
            raise NotWritable(f"its {name} holds elements of type {array.dtype}")
    given = {
        name: [names[one] for one in at] if isinstance(at, list) else names[at]
        for name, at in call.input_positions().items()
    }
    return {
        "framework": "tensorflow",
        "op": call.kind,
        "arguments": given,
        "attributes": {name: _node(value, name) for name, value in call.named_attributes().items()},
        "tensors": {
            name: {"dtype": array.dtype.name, "shape": list(np.shape(array))} for name, array in arrays.items()
        },
        "settings": {
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "op_determinism": bool(config.is_op_determinism_enabled()),
            "tensor_float_32": bool(tf.config.experimental.tensor_float_32_execution_enabled()),
        },
    }


def _node(value: Any, name: str) -> Any:
    """A value as JSON: a type that JSON lacks becomes a dictionary with one key, which names the type."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bytes, str)):
        return value.decode("utf-8", "strict") if isinstance(value, bytes) else value
    if isinstance(value, tf.DType):
        return {"dtype": value.name}
    if isinstance(value, tf.TensorShape):
        return {"shape": None if value.rank is None else value.as_list()}
    if isinstance(value, (list, tuple)):
        return [_node(one, name) for one in value]
    raise NotWritable(f"its attribute {name} is of type {type(value).__qualname__}")


# One op with its inputs, to be repeated in isolation.


class OpCall(NamedTuple):
    """The inputs and outputs of an op, and how to run it again."""

    kind: str
    inputs: Sequence[Any]
    """Tensors or arrays, in the order of the op's inputs; empty if unknown."""
    attributes: dict[str, Any]
    outputs: Sequence[Any]
    problem: str | None = None
    """Why it cannot be run again; None if it can."""

    def run(self) -> list[Any]:
        """Run it once, eagerly.

        Raises:
            Exception: Whatever TensorFlow raises.
        """
        given: dict[str, Any] = {
            name: [tf.convert_to_tensor(self.inputs[one]) for one in at]
            if isinstance(at, list)
            else tf.convert_to_tensor(self.inputs[at])
            for name, at in self.input_positions().items()
        }
        made = getattr(tf.raw_ops, self.kind)(**given, **self.named_attributes())
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        return [part for one in made for part in (one if isinstance(one, list) else [one])]

    def varying_place(self, seconds: float) -> None:
        """Return None: a function is recorded op by op, so the record itself is the place."""

    def places(self) -> list[dict[str, Any]]:
        """Return an empty list: a function is recorded op by op."""
        return []

    def document(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The call as JSON; see `call_document`."""
        return call_document(self, arrays)

    def input_paths(self) -> dict[int, str]:
        """The argument that takes each input, by the input's position; empty for an op that cannot be run in isolation."""
        positions = self.input_positions() if self.problem is None else {}
        named = {at: name for name, at in positions.items() if isinstance(at, int)}
        lists = {name: at for name, at in positions.items() if isinstance(at, list)}
        return named | {one: f"{name}[{number}]" for name, at in lists.items() for number, one in enumerate(at)}

    def input_positions(self) -> dict[str, int | list[int]]:
        """The positions of the inputs that each argument of the op takes, by the argument's name."""
        arguments = op_def_registry.get(self.kind).input_arg
        found: dict[str, int | list[int]] = {}
        at = 0
        lists = [one for one in arguments if one.number_attr or one.type_list_attr]
        singles = len(arguments) - len(lists)
        for one in arguments:
            if one in lists:
                count = self.attributes.get(one.number_attr) or len(self.attributes.get(one.type_list_attr, ()))
                # An eager op does not record the lengths of its lists; the remaining inputs are split evenly among them.
                count = count or (len(self.inputs) - singles) // len(lists)
                found[one.name] = list(range(at, at + count))
                at += count
            else:
                found[one.name] = at
                at += 1
        return found

    def named_attributes(self) -> dict[str, Any]:
        """The attributes that do not follow from the inputs."""
        definition = op_def_registry.get(self.kind)
        told = {name for one in definition.input_arg for name in (one.number_attr, one.type_list_attr, one.type_attr)}
        names = [one.name for one in definition.attr if one.name not in told]
        return {name: self.attributes[name] for name in names if name in self.attributes}


def eager_call(kind: str, inputs: Sequence[Any], attributes: Any, outputs: Sequence[Any]) -> OpCall:
    """An op that ran eagerly.

    Args:
        kind: Its type.
        inputs: Eager tensors.
        attributes: Names and values, alternating.
        outputs: Its results.
    """
    named = dict(zip((attributes or ())[::2], (attributes or ())[1::2], strict=False))
    problem = None if all(tensor.dtype not in (tf.resource, tf.variant) for tensor in inputs) else _HANDLES
    return OpCall(kind, inputs, named, outputs, problem)


def graph_call(op: Any, inputs: Sequence[Any], outputs: Sequence[Any], *, is_fused: bool) -> OpCall:
    """An op of a graph.

    Args:
        op: The op.
        inputs: Arrays; None for an unknown one.
        outputs: Its results as arrays.
        is_fused: Whether it represents several ops, of which only the last one is available.
    """
    problem = None
    if is_fused:
        problem = "it represents several ops that TensorFlow may compute as one"
    elif any(one is None for one in inputs):
        problem = "the content of one of its inputs was not kept"
    attributes = {name: op.get_attr(name) for name in op.node_def.attr if not name.startswith("_")}
    return OpCall(op.type, inputs, attributes, outputs, problem)


_HANDLES = "it reads or writes state outside of tensors"


def as_array(value: Any) -> Any:
    """Convert a tensor or array to an array."""
    return np.asarray(value._numpy_internal()) if hasattr(value, "_numpy_internal") else np.asarray(value)


# Records of one call of a function, kept until the contents of the variables that it wrote are known.

_Record = tuple[
    Role, Phase, str, Place, str, Sequence[Value], list[tuple[int, bytes]], Sequence[bytes], Callable[[], Call] | None
]


class PendingRecords:
    """Collects the records of one call in the order of the program, and then writes them."""

    def __init__(self, recorder: RecordMaker) -> None:
        """Begin after the records that the recorder has made."""
        self._recorder = recorder
        self._first = recorder.writer.num_records
        self._records: list[_Record] = []
        self._held: dict[int, Value] = {}
        """What the variables that the call has written hold at this point."""
        self._written: dict[int, Resource] = {}
        self._open: dict[int, tuple[Resource, Value]] = {}
        """Variables whose content becomes known only when the call is over."""
        self.value_layout = recorder.stream.value_layout
        self.keeps = recorder.capture is not None
        """Whether the contents of values are needed in addition to their digests."""
        self.kept: dict[tuple[bytes, int], Any] = {}
        """Contents by digest and layout."""

    def layout(self, dtype: str, shape: Sequence[int]) -> int:
        """The number of a layout, on the device that the program computes on."""
        return self._recorder.stream.layout(dtype, shape, self._recorder.device)

    def content(self, resource: Resource) -> Value:
        """What a variable holds at this point; a placeholder without digest for anything else."""
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
        call: Callable[[], Call] | None = None,
    ) -> int:
        """Add a record; return the number that it will have."""
        self._records.append((role, phase, name, place, arguments, tuple(read), list(made), drawn, call))
        return self._first + len(self._records) - 1

    def wrote(self, resource: Resource, value: Value, *, is_known: bool) -> None:
        """Note that a record wrote a variable.

        Args:
            resource: Its handle.
            value: What it holds now; if that is unknown, a digest of the op's inputs.
            is_known: Whether the content is known.
        """
        self._held[resource.key] = value
        self._written[resource.key] = resource
        if is_known:
            self._open.pop(resource.key, None)
        else:
            self._open[resource.key] = (resource, value)

    def finish(self) -> None:
        """Read the variables whose last write was not observed, and write the records."""
        recorder = self._recorder
        for key, (resource, value) in self._open.items():
            held = recorder.read_variable(resource)
            if held is not None:
                layout, digest = held
                self._records[value.record - self._first][6][value.output] = (layout, digest)
                self._held[key] = value._replace(layout=layout, digest=digest)
        for row in self._records:
            recorder.write(*row)
        for key, value in self._held.items():
            recorder.variables.wrote(self._written[key], value)


_NOWHERE = -1
_Here = tuple[Phase, str, int, int]
"""Phase, scope, and the numbers of the stacks of an op and of its forward op."""


class RecordMaker(RecordingGuard):
    """Tracks where the thread is in the program, and records what it does there."""

    def __init__(self, *, paranoid: bool) -> None:
        """Create a recorder that is inactive until `begin`.

        Args:
            paranoid: Whether to digest every input of every op.
        """
        super().__init__()
        self.thread = get_ident()
        self.replicas: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads in which a distribution strategy runs replicas one at a time, while the recorded thread waits for them."""
        self._paranoid = paranoid
        self.device = "CPU:0"
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.arrived: Callable[[], None] = lambda: None
        """Called when a batch arrived."""
        self.note_racy: Callable[[str], None] = lambda what: None
        """Called with what may differ in the next run."""
        self.backward_depth = 0
        self.ledger: NamedLedger | None = None
        """Gets the digests of each step, if a ledger is kept."""
        self.capture: Capture | None = None
        """Sees every record before it is made; set in a further run that examines one closely."""

    def begin(self, stream: Stream) -> None:
        """Record into a stream from now on."""
        self.stream = stream
        self.writer = stream.writer
        self._stacks: dict[int, tuple[Place, int, int]] = {}
        self.values = Values()
        self.variables = Variables()
        self.pipelines = Pipelines(self.note_racy)
        self.progress = Progress(lambda counted_by: self.step_ended(counted_by))
        self.is_active = True

    def layout(self, tensor: Any) -> int:
        """The number of an eager tensor's layout."""
        return self.stream.layout(tensor.dtype.name, tensor.shape, device_name(tensor.device))

    def read_variable(self, resource: Resource) -> tuple[int, bytes] | None:
        """Layout and digest of what a variable holds now; None if it is not a variable, or not initialised yet."""
        tensor = content_of(resource.handle)
        return None if tensor is None else (self.layout(tensor), digest_tensor(tensor))

    def held_by(self, tensor: Any) -> Value | Resource | None:
        """What an argument of a function holds; None if that cannot be read."""
        raise NotImplementedError

    def is_own(self) -> bool:
        """Whether this thread's ops are recorded, and recording is active now."""
        return (get_ident() == self.thread or self.is_replica()) and self.is_ready()

    def is_replica(self) -> bool:
        """Whether this thread runs a replica of the recorded one."""
        return bool(self.replicas) and threading.current_thread() in self.replicas

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
        call: Callable[[], Call] | None = None,
    ) -> int:
        """Add a record of what this thread does now; return its number."""
        place = self.here(phase, sys._getframe(2))
        return self._append(role, place, name, arguments, read, made, drawn, call)

    def here(self, phase: Phase | None, frame: FrameType) -> _Here:
        """Where the program is now: phase, scope and stack."""
        scope = context.context().scope_name.rstrip("/")
        if self.is_replica() and (replica := getattr(threading.current_thread(), "replica_id", 0)):
            # As TensorFlow itself names replicas in graphs; there the first one has no name.
            scope = f"replica_{replica}/{scope}".rstrip("/")
        return self.phase if phase is None else phase, scope, self.stream.sites.stack(frame), NO_STACK

    def hold(self, held: Iterable[tuple[str, str, Value]]) -> None:
        """Record what the program holds now; each value with the names of the record's op and of the variable."""
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
        call: Callable[[], Call] | None,
    ) -> None:
        """Add a record of an op in a graph, attributed to the line that added the op."""
        sites = self.stream.sites
        if place.frames:
            _, stack, forward = self._stacks.get(id(place)) or self._know(place)
        else:
            stack, forward = sites.stack(sys._getframe(2)), NO_STACK
        self._append(role, (phase, place.module, stack, forward), name, arguments, read, made, drawn, call)

    def _know(self, place: Place) -> tuple[Place, int, int]:
        """Look up the stack numbers of a place; keeping a reference to it prevents reuse of its id."""
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
        call: Callable[[], Call] | None,
    ) -> int:
        phase, module, stack, forward = place
        if self.capture is not None:
            self.capture.look(name, self.progress.step, phase, module, call)
        inputs, digests = self.values.unread.read(read, paranoid=self._paranoid)
        if name in LAYOUT_ONLY:
            inputs, digests = [], []
        outputs: list[int | bytes] = []
        for made_one in made:
            outputs += made_one
        cells = (
            0, self.progress.step, phase, role, self.stream.op(name), self.stream.module(module), stack, _NOWHERE, forward,
            self.stream.arguments(arguments),
        )  # fmt: skip
        return self.writer.append(cells, inputs, digests, outputs, drawn)
