"""Turns every op that runs eagerly, and every function that is called eagerly, into records; and announces the files that TensorFlow opens."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.eager import record
from tensorflow.python.framework import dtypes
from tensorflow.python.lib.io import file_io, tf_record
from tensorflow.python.training import py_checkpoint_reader

from determinism.digest import digest_text
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.named_stream import Stream
from determinism.frameworks.tensorflow import ops
from determinism.frameworks.tensorflow.functions import FunctionCalls
from determinism.frameworks.tensorflow.graphs import eager_argument_text
from determinism.frameworks.tensorflow.ops import Resource, digest_tensor, drawn_from, has_value, is_read_from
from determinism.frameworks.tensorflow.records import RecordMaker, eager_call
from determinism.frameworks.wrapping import Undo, when_imported, wrap
from determinism.types import Role

# Seeds that Keras draws from Python's generator if the program gives none, as for dropout layers and initial weights.

OP = "keras::make_default_seed"
_DRAWING = "keras.src.random.seed_generator"
_USING = "keras.src.backend.tensorflow.random"
"""A module that imports the function by name, before or after it was wrapped."""
_MOST_SEEDS = 10_000


class KerasSeeds:
    """The seeds that were drawn, and the records of these draws."""

    def __init__(self, recorder: Recorder) -> None:
        """Take the recorder that makes the records."""
        self._recorder = recorder
        self._drawn: dict[int, Value] = {}

    def install(self) -> Undo:
        """Record draws from now on; return a function that stops it."""

        def hook(module: Any) -> list[Undo]:
            found = (module, sys.modules.get(_USING))
            return [wrap(one, "make_default_seed", self._draw) for one in found if hasattr(one, "make_default_seed")]

        return when_imported(_DRAWING, hook, self._recorder.failed_to_hook)

    def _draw(self, original: Callable[[], int]) -> int:
        state = digest_text(repr(random.getstate()))
        seed = original()
        if self._recorder.is_own():
            self._recorder.run_unrecorded(self._record, seed, state)
        return seed

    def _record(self, seed: int, state: bytes) -> None:
        made = (self._recorder.stream.value_layout, digest_text(repr(seed)))
        number = self._recorder.emit(Role.OP, OP, [], [made], drawn=[state])
        if len(self._drawn) < _MOST_SEEDS:
            self._drawn[seed] = Value(number, 0, *made)

    def behind(self, tensor: Any) -> Value | None:
        """The draw of the seed that a tensor holds; None if it holds none. Keras stores a seed as a pair of integers."""
        if not self._drawn or not tensor.dtype.is_integer or tensor.shape.rank != 1 or tensor.shape[0] != 2:
            return None
        return self._drawn.get(int(tensor._numpy_internal()[0]))


class Recorder(RecordMaker):
    """Records what the thread that imported TensorFlow does."""

    def __init__(self, *, tracks_ops: bool, paranoid: bool) -> None:
        """Create a recorder that is inactive until `begin`.

        Args:
            tracks_ops: Whether ops are recorded, or only the state at the ends of steps.
            paranoid: Whether to digest every input of every op.
        """
        super().__init__(paranoid=paranoid)
        self.tracks_ops = tracks_ops

    def begin(self, stream: Stream) -> None:
        """Record into a stream from now on."""
        self.calls = FunctionCalls(self)
        self.keras_seeds = KerasSeeds(self)
        super().begin(stream)

    def failed_to_hook(self, reason: str) -> None:
        """Note that a library of the program could not be hooked."""
        self.failed("optimizers of Keras", RuntimeError(reason))

    def op_ran(
        self, op_type: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        """Record an op that ran eagerly; one that was added to a graph is recorded when its function runs."""
        if graph is not None or self._is_busy or not self.is_own():
            return
        kind = op_type.decode() if isinstance(op_type, bytes) else op_type
        if kind in ops.UNRECORDED or kind.startswith("__"):
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
        if kind in ops.PASSING:
            for given, made in zip(inputs, outputs, strict=False):
                if has_value(made.dtype):
                    self.values.made(made, self.value(given))
            return
        if kind == "MakeIterator":
            self.pipelines.iterator_made(inputs)
            return
        if ops.READS_FILES.fullmatch(kind):
            _announce_read(inputs[0])
        if any(tensor.dtype is dtypes.variant for tensor in outputs) and ops.is_dataset(kind):
            self.pipelines.stage_made(kind, inputs, attributes, outputs)
            return
        written = [self.resource(t) for t in inputs if t.dtype is dtypes.resource] if ops.writes_variables(kind) else []
        read = [value for tensor in inputs if (value := self.value_or_none(tensor)) is not None]
        if written and kind != "AssignVariableOp":
            read += [held for one in written if (held := self.variables.get(one.key)) is not None]
        valued = [tensor for tensor in outputs if has_value(tensor.dtype)]
        digest = partial(_digest_of_name, kind) if ops.makes_resource_handle(kind) else digest_tensor
        made = [(self.layout(tensor), digest(tensor)) for tensor in valued]
        held_now = [self.read_variable(one) for one in written]
        made += [held for held in held_now if held is not None]
        role = ops.role_of(kind, has_inputs=bool(read))
        if role is Role.BATCH:
            self.arrived()
        if not made and role is Role.OP:
            return
        drawn = drawn_from(kind, read, made)
        text = self._stages_before(inputs) if role is Role.BATCH else eager_argument_text(attributes)
        call = partial(eager_call, kind, inputs, attributes, valued)
        if kind in ops.BY_FILE_NAME:
            read = read[1:]
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

    def value(self, tensor: Any) -> Value:
        """What an eager tensor holds, and its producer; if that is unknown, the content is digested now."""
        known = self.values.get(tensor)
        if known is not None:
            return known
        digest = digest_tensor(tensor)
        value = self._held_by_variable(tensor, digest) or self.keras_seeds.behind(tensor)
        value = value or Value(EXTERNAL, 0, self.layout(tensor), digest)
        self.values.made(tensor, value)
        return value

    def value_or_none(self, tensor: Any) -> Value | None:
        """What an eager tensor holds; None if that cannot be read."""
        return self.value(tensor) if has_value(tensor.dtype) else self.values.get(tensor)

    def _held_by_variable(self, tensor: Any, digest: bytes) -> Value | None:
        """The value of the variable that a tensor was read from: a read within another op is not reported."""
        handle = self.variables.holding(digest)
        return self.variables.get(handle._id) if handle is not None and is_read_from(tensor, handle) else None

    def resource(self, handle: Any) -> Resource:
        """The resource of a handle."""
        return Resource(handle._id, handle)

    def held_by(self, tensor: Any) -> Value | Resource | None:
        """What an argument of a function holds; None if that cannot be read."""
        if has_value(tensor.dtype):
            return self.value(tensor)
        if tensor.dtype is not dtypes.resource:
            return self.values.get(tensor)
        resource = self.resource(tensor)
        if self.variables.get(resource.key) is None and (held := self.read_variable(resource)) is not None:
            self.variables.wrote(resource, Value(EXTERNAL, 0, *held))
        return resource


def _digest_of_name(kind: str, _: Any) -> bytes:
    """A digest in place of a resource's name, which may differ between runs."""
    return digest_text(f"tf::{kind}")


# Raises audit events for the files that TensorFlow reads and writes: it opens them in C++, where Python does not see it. A check
# evaluates these events in `launch/reading.py`; otherwise nothing listens.

_READ, _WRITTEN = "determinism.read", "determinism.write"
_INDEX = ".index"
"""Ending of the checkpoint file that is read first, and that every checkpoint has."""


def announce_files() -> list[Undo]:
    """Announce TensorFlow's own reads and writes of files and checkpoints from now on; return functions that stop it."""
    wrapped: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (file_io.FileIO, "_preread_check", _read),
        (file_io.FileIO, "_prewrite_check", _written),
        (file_io, "rename_v2", _renamed),
        (py_checkpoint_reader, "NewCheckpointReader", _restored),
        (functional_saver.MultiDeviceSaver, "save", _saved),
        (tf_record.TFRecordWriter, "__init__", _records_written),
    )
    # Some of these are internal, so another version may lack them; a check then knows less about files.
    return [wrap(owner, name, around) for owner, name, around in wrapped if hasattr(owner, name)]


def _announce_read(names: Any) -> None:
    """Announce that an op reads the files named by a tensor of strings."""
    for name in _texts(names):
        _announce(_READ, name)


def _announce(event: str, path: Any) -> None:
    path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    # A path with a scheme is not a local file.
    if path and "://" not in path:
        sys.audit(event, path)


def _texts(value: Any) -> Iterator[str | bytes]:
    """The strings of an argument: the argument itself, or the content of an eager tensor."""
    if isinstance(value, (str, bytes)):
        yield value
    elif hasattr(value, "_numpy_internal"):
        held = value._numpy_internal()
        yield from (one for one in getattr(held, "flat", [held]) if isinstance(one, (str, bytes)))


def _read(original: Callable[..., Any], file: Any) -> Any:
    if getattr(file, "_read_buf", None) is None:
        _announce(_READ, file.name)
    return original(file)


def _written(original: Callable[..., Any], file: Any) -> Any:
    if getattr(file, "_writable_file", None) is None:
        _announce(_WRITTEN, file.name)
    return original(file)


def _renamed(original: Callable[..., Any], src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
    _announce(_WRITTEN, dst)
    return original(src, dst, *args, **kwargs)


def _restored(original: Callable[..., Any], filepattern: Any) -> Any:
    for prefix in _texts(filepattern):
        _announce(_READ, f"{os.fsdecode(prefix)}{_INDEX}")
    return original(filepattern)


def _saved(original: Callable[..., Any], saver: Any, file_prefix: Any, *args: Any, **kwargs: Any) -> Any:
    for prefix in _texts(file_prefix):
        _announce(_WRITTEN, f"{os.fsdecode(prefix)}{_INDEX}")
    return original(saver, file_prefix, *args, **kwargs)


def _records_written(original: Callable[..., Any], writer: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    _announce(_WRITTEN, path)
    return original(writer, path, *args, **kwargs)
