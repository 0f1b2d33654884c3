"""Turns each execution of a compiled program into a record: its inputs, its outputs, and which program it was.

JAX passes everything to XLA as a compiled program: a function under `jax.jit`, and each op outside of one. Executions go
through `ExecuteReplicated`, unless JAX has a C++ fast path, which is disabled while this records.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from types import FrameType
from typing import Any, Protocol

import jax
import numpy as np
from jax import export
from jax._src import core

from determinism.digest import digest_bytes, digest_many
from determinism.frameworks.array_capture import Capture, NotWritable
from determinism.frameworks.jax.arrays import (
    SharedMemory,
    array_of,
    as_array,
    digest_array,
    digest_value,
    digests_of_parts,
)
from determinism.frameworks.jax.training import STEPS_BY, Called, Returning, TrainingFunction, called
from determinism.frameworks.made_values import EXTERNAL, Unread, Value
from determinism.frameworks.named_stream import NamedLedger, Stream
from determinism.frameworks.progress import Progress, RecordingGuard
from determinism.sites import NO_STACK
from determinism.source_files import copy_of
from determinism.trace.schema import INPUT_PATHS, RESULTS_OP, STEP_OP, Meaning
from determinism.types import Phase, Role

# One execution of a compiled program with its arguments, to be repeated in isolation.

_NOT_REPEATED = "the program calls back into Python, which may do something different each time"


class CapturedExecution:
    """An execution, whose inputs are copied before it runs: it may reuse the memory of donated ones."""

    def __init__(
        self,
        name: str,
        original: Callable[..., Any],
        execution: Any,
        jaxpr: Any,
        args: Sequence[Any],
        stored: Any = None,
    ) -> None:
        """Copy the inputs.

        Args:
            name: The name of its record.
            original: The function that runs an `ExecuteReplicated`.
            execution: The `ExecuteReplicated`.
            jaxpr: What was traced; None if unknown.
            args: Its arguments.
            stored: Its `stored_form`, taken before its first run; None to take it when needed.
        """
        self._name = name
        self._jaxpr = jaxpr
        self._original = original
        self._execution = execution
        self._stored = stored
        self._args = [_copy(one) for one in args]
        self.inputs = [as_array(one) for at, one in enumerate(self._args) if at in execution.kept_var_idx]
        self.outputs: Sequence[Any] = ()
        self.problem = _NOT_REPEATED if execution.has_host_callbacks else None

    def input_paths(self) -> dict[int, str]:
        """Return an empty dictionary: the record names them."""
        return {}

    def run(self) -> list[Any]:
        """Run it once more; return its results as arrays."""
        results = self._original(self._execution, *[_copy(one) for one in self._args])
        return [as_array(one) for one in results if array_of(one) is not None]

    def varying_place(self, seconds: float) -> dict[str, Any] | None:
        """The kernel that varies, or else the equation, and its line; None if none varied, or the function was not traced in this process."""
        # Only runs in which something varies need these modules.
        from determinism.frameworks.jax.inside import equation_at, varying_place
        from determinism.frameworks.jax.kernels import NotCut, stored_form, varying_kernel

        results = [digest for one in self.outputs for digest in digests_of_parts(array_of(one))]
        try:
            stored = self._stored or stored_form(self._execution)
            kernel = varying_kernel(self._execution, stored, self._copied_arguments, results, seconds)
            why_not = None
        except NotCut as error:
            kernel, why_not = None, str(error)
        if kernel is not None:
            place = equation_at(self._jaxpr, kernel.place)
            made_from = [one._asdict() for one in kernel.made_from]
            about = {"instruction": kernel.instruction, "opcode": kernel.opcode, "made_from": made_from}
            return {**place._asdict(), "kernel": about}
        if self._jaxpr is None:
            return None
        # Constants that the function closes over come before its arguments.
        args = self._args[len(self._args) - len(self._jaxpr.in_avals) :]
        found = varying_place(self._jaxpr, args, seconds)
        return None if found is None else {**found._asdict(), "no_kernel": why_not}

    def _copied_arguments(self) -> list[Any]:
        """Copies of the arguments in memory that nothing else uses."""
        return [np.array(one) if isinstance(one, np.ndarray) else _copy(one) for one in self._args]

    def places(self) -> list[dict[str, Any]]:
        """The equations of the traced function, with their lines; empty if it was not traced in this process."""
        if self._jaxpr is None:
            return []
        from determinism.frameworks.jax.inside import equation_places

        return [one._asdict() for one in equation_places(self._jaxpr)]

    def document(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The call as JSON; see `call_document`."""
        # Constants that the function closes over come before its arguments.
        constants = 0 if self._jaxpr is None else len(self._args) - len(self._jaxpr.in_avals)
        kept = sorted(at - constants for at in self._execution.kept_var_idx)
        if kept and kept[0] < 0:
            raise NotWritable("it closes over arrays that JAX passes to it separately from its arguments")
        return call_document(self._name, self._jaxpr, self._args[constants:], kept, arrays)


def _copy(thing: Any) -> Any:
    array = array_of(thing)
    if array is None:
        return thing
    copied = jax.device_put(np.array(as_array(array)), array.sharding)
    return copied if thing is array else thing


# Identifies what XLA compiled: runs that baked different numbers into a function ran different programs.


class CompiledPrograms:
    """A text for each executable, equal in all runs that compiled the same program."""

    def __init__(self) -> None:
        self._texts: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def text(self, execution: Any) -> str:
        """A text that identifies the program of an `ExecuteReplicated`.

        Empty for one that calls back into Python: it contains the address of the callback.
        """
        if execution.has_host_callbacks:
            return ""
        known = self._texts.get(execution)
        if known is None:
            modules = execution.xla_executable.hlo_modules()
            digest = digest_many(
                digest_bytes(_at_original_paths(one.as_serialized_hlo_module_proto())) for one in modules
            )
            known = self._texts[execution] = f"program={digest.hex()}{_paths_of_inputs(modules[0])}"
        return known


_PARAMETER = re.compile(r' parameter\((\d+)\).*?op_name="((?:[^"\\]|\\.)*)"')
_UNNAMED = re.compile(r"args\[\d+\]")


def _paths_of_inputs(module: Any) -> str:
    """Where each input of a program is among the function's arguments, from XLA's metadata; empty if that has none."""
    _, _, entry = module.to_string().partition("\nENTRY ")
    paths = {int(number): re.sub(r"\\(.)", r"\1", path) for number, path in _PARAMETER.findall(entry)}
    if not paths or all(_UNNAMED.fullmatch(path) for path in paths.values()):
        return ""
    return INPUT_PATHS + json.dumps([paths.get(number, "") for number in range(max(paths) + 1)])


def _at_original_paths(program: bytes) -> bytes:
    """Replace the paths of files in a copy of the working directory by the original ones."""
    copied = copy_of()
    return program if copied is None else program.replace(copied[0].encode(), copied[1].encode())


# Which record produced an array, by the array's identity; arrays are immutable.

_MOST_ARRAYS = 100_000


class Values:
    """What the arrays of a program hold, and the records that produced them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}
        self.unread = Unread()

    def get(self, array: Any) -> Value | None:
        """What an array holds; None if its producer is unknown."""
        known = self._known.get(id(array))
        # An id is reused once its array is gone.
        return known[1] if known is not None and known[0]() is array else None

    def made(self, array: Any, value: Value) -> None:
        """Note what an array holds and which record produced it."""
        if len(self._known) >= _MOST_ARRAYS:
            self._known = {key: known for key, known in self._known.items() if known[0]() is not None}
            if len(self._known) >= _MOST_ARRAYS:
                # A forgotten array is digested when it is read.
                self._known.clear()
        self._known[id(array)] = (weakref.ref(array), value)
        self.unread.made(value)

    def records(self) -> set[int]:
        """The records whose results still exist."""
        return {value.record for array, value in self._known.values() if array() is not None}


_NONE = -1
_MOST_UNREAD = 1000
_CALLS_BACK = "it calls back into Python, so its results do not show whether the compiled code or the callback differs"
_REUSED = (
    "it reads a NumPy array in place, which the program changes before it waits for a result: JAX may still be reading it then, but not "
    "in these runs, where each execution ends before the program goes on"
)


class Rows(Protocol):
    """Examines the rows of executions."""

    def before(self, original: Callable[..., Any], execution: Any, jaxpr: Any, args: Sequence[Any]) -> Any:
        """Examine the inputs of an execution about to run; return data for `after`, or None to skip it."""

    def after(self, record: int, name: str, execution: Any, given: Any, made: Sequence[Any]) -> None:
        """Examine an execution that has run and was recorded."""


class Recorder(RecordingGuard):
    """Records the executions of one thread."""

    def __init__(self, *, paranoid: bool) -> None:
        """Create a recorder that is inactive until `begin`.

        Args:
            paranoid: Whether to digest every input of every execution.
        """
        super().__init__()
        self.thread = get_ident()
        self._paranoid = paranoid
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.step_passed: Callable[[], None] = lambda: None
        """Called before the training function is called again, when nothing is being recorded."""
        self.number = 0
        """Number of the thread among those other than the main one, from 1."""
        self.jaxpr: Any = None
        """The traced form of the function that JAX is about to execute."""
        self.ledger: NamedLedger | None = None
        """Gets the digests of each step, if a ledger is kept."""
        self.capture: Capture | None = None
        """Sees every record before it is made; set in a further run that examines one closely."""
        self.rows: Rows | None = None
        """Examines the rows of executions, if batches are compared."""

    def begin(self, stream: Stream) -> None:
        """Record into a stream from now on."""
        self.stream = stream
        self.writer = stream.writer
        self.values = Values()
        self.shared_memory = SharedMemory()
        self._programs = CompiledPrograms()
        self._stored: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._functions: weakref.WeakKeyDictionary[Any, Called | None] = weakref.WeakKeyDictionary()
        self._training = TrainingFunction()
        self._takes_turns = False
        """Whether the trace already says that functions train in turns."""
        self._coming_back: list[Returning] | None = None
        """The training function's results that are about to be passed to it again; None between its calls."""
        self.progress = Progress(lambda counted_by: self.step_ended(counted_by))
        self.progress.phase = Phase.OTHER
        self.is_active = True

    def is_own(self) -> bool:
        """Whether this thread is recorded, and recording is active now."""
        return get_ident() == self.thread and self.is_ready()

    def call(self, original: Callable[..., Any], *args: Any, **known: Any) -> Any:
        """Call a compiled function, which may execute it; `known` has its traced form."""
        outer, self.jaxpr = self.jaxpr, known.get("jaxpr")
        try:
            return original(*args, **known)
        finally:
            self.jaxpr = outer

    def execute(self, original: Callable[..., Any], execution: Any, *args: Any, frame: FrameType) -> Any:
        """Run a compiled program, and record it; `frame` is its caller."""
        function = self.run_unrecorded(self._function, execution, frame)
        step = self.progress.step
        read = self.run_unrecorded(self._read, function, execution, args)
        if self.progress.step != step:
            self.step_passed()
        call = self.run_unrecorded(self._captured, original, function, execution, args)
        rows = self.rows
        given = None if rows is None else self.run_unrecorded(rows.before, original, execution, self.jaxpr, args)
        results = original(execution, *args)
        if read is not None:
            self.run_unrecorded(self._executed, function, execution, read, results, call, given, frame)
        return results

    def _function(self, execution: Any, frame: FrameType) -> Called | None:
        """The function of the program that is executed; None for ops of JAX itself."""
        if execution not in self._functions:
            self._functions[execution] = called(execution.name, self.jaxpr, frame)
        return self._functions[execution]

    def _captured(
        self, original: Callable[..., Any], function: Called | None, execution: Any, args: Sequence[Any]
    ) -> CapturedExecution | None:
        """The execution, if it may be the one to examine."""
        name = _op(function, execution)
        if self.capture is None or not self.capture.wants(name):
            return None
        # Only runs that capture something need this module.
        from determinism.frameworks.jax.kernels import stored_form

        if execution not in self._stored:
            self._stored[execution] = stored_form(execution)
        return CapturedExecution(name, original, execution, self.jaxpr, args, self._stored[execution])

    def _read(self, function: Called | None, execution: Any, args: Sequence[Any]) -> list[Value]:
        """What the inputs hold; called before the program runs, which may reuse the memory of donated ones."""
        read = self.inputs(execution, args)
        for at, value in read.items():
            if value.record == EXTERNAL:
                earlier = self.shared_memory.read(args[at], value.digest, _op(function, execution))
                if earlier is not None:
                    self.writer.blind_spot("reused-memory", earlier, _REUSED)
        if function is not None:
            self._coming_back = self._training.coming_back(function, read, [array_of(one) for one in args]) or None
            # A smaller function that was called just before may already have ended this step.
            has_ended = self._training.takes_over and self.progress.step >= self._training.num_calls
            if self._coming_back is not None and not has_ended:
                self.progress.trains_again(STEPS_BY)
            self._coming_back = None
            if self._training.takes_turns and not self._takes_turns and self.progress.steps_by == STEPS_BY:
                self._takes_turns = True
                self.writer.describe(steps_in_turns=True)
        return list(read.values())

    def inputs(self, execution: Any, args: Sequence[Any]) -> dict[int, Value]:
        """What each argument that the compiled program reads holds, by its position among all arguments."""
        return {
            at: self.value(one) for at, one in enumerate(args) if at in execution.kept_var_idx and not _is_gone(one)
        }

    def _executed(
        self,
        function: Called | None,
        execution: Any,
        read: Sequence[Value],
        results: Any,
        call: CapturedExecution | None,
        given: Any,
        frame: FrameType,
    ) -> None:
        arrays = [array for one in results if (array := array_of(one)) is not None]
        made = [(self.layout(array), digest_array(array)) for array in arrays]
        name = _op(function, execution)
        if execution.has_host_callbacks:
            self.writer.blind_spot("host-callback", name, _CALLS_BACK)
        if self.capture is not None:
            if call is not None:
                call.outputs = arrays
            self.capture.look(name, self.progress.step, self.progress.phase, "", None if call is None else lambda: call)
        text = self._programs.text(execution)
        number = self.emit(Role.OP, name, read, made, arguments=text, frame=frame)
        if self.rows is not None and given is not None:
            self.rows.after(number, name, execution, given, arrays)
        values = [Value(number, position, *one) for position, one in enumerate(made)]
        for array, value in zip(arrays, values, strict=True):
            self.values.made(array, value)
        if self._training.is_full:
            self._training.forget_all_but(self.values.records())
        self._training.executed(function, number, read, values, arrays)
        if len(self.values.unread) >= _MOST_UNREAD:
            self.note_unread()

    def note_held(self, op: str, drawn: Sequence[bytes]) -> None:
        """Record the loss of the training function's last call, and which of its results are passed to it again.

        Args:
            op: Name of the record: the end of a step, or of the process.
            drawn: Digests of generator states.
        """
        if (loss := self._training.take_loss()) is not None:
            value = loss.value
            number = self.emit(Role.LOSS, "determinism::loss", [value], [(value.layout, value.digest)])
            place = (value.record, value.output)
            self.writer.number(Meaning.LOSS, number, place, loss.number, self.progress.step)
            if self.ledger is not None:
                self.ledger.loss([value], loss.number)
        held = self._training.held() if self._coming_back is None else self._coming_back
        if self.ledger is not None and op == STEP_OP:
            self.ledger.end_step(self.progress.step, [(one.sort, one.value) for one in held], drawn)
        names = [[one.sort, one.path] for one in held]
        self.emit(Role.STATE, op, [one.value for one in held], arguments=json.dumps(names), drawn=drawn)

    def note_unread(self) -> None:
        """Record values whose reads were not observed, and which may have left JAX."""
        if len(self.values.unread):
            self.emit(Role.ESCAPE, RESULTS_OP, self.values.unread.take())

    def layout(self, array: Any) -> int:
        """The number of an array's layout."""
        devices = sorted({device.platform for device in array.sharding.device_set})
        device = devices[0] if array.sharding.num_devices == 1 else f"{devices[0]} x{array.sharding.num_devices}"
        return self.stream.layout(array.dtype.name, array.shape, device)

    def value(self, thing: Any) -> Value:
        """What an array or a number holds, and its producer; if that is unknown, the content is digested now."""
        array = array_of(thing)
        if array is None:
            held = np.asarray(thing)
            return Value(EXTERNAL, 0, self.stream.layout(held.dtype.name, held.shape, "host"), digest_value(held))
        known = self.values.get(array)
        if known is None:
            known = Value(EXTERNAL, 0, self.layout(array), digest_array(array))
            self.values.made(array, known)
        return known

    def emit(
        self,
        role: Role,
        name: str,
        read: Sequence[Value],
        made: Sequence[tuple[int, bytes]] = (),
        *,
        arguments: str = "",
        drawn: Sequence[bytes] = (),
        frame: FrameType | None = None,
        has_place: bool = True,
    ) -> int:
        """Add a record of what this thread does now; return its number.

        Args:
            role: Its role.
            name: Name of the op.
            read: Its inputs.
            made: Layout and digest of each output.
            arguments: As text.
            drawn: Digests of generator states.
            frame: Where to look for the line of the program; None for the caller's frame.
            has_place: Whether it belongs to a line of the program at all.
        """
        inputs, digests = self.values.unread.read(read, paranoid=self._paranoid)
        outputs = [part for one in made for part in one]
        stream = self.stream
        stack = stream.sites.stack(frame or sys._getframe(1)) if has_place else NO_STACK
        cells = (
            self.number, self.progress.step, self.progress.phase, role, stream.op(name), _NONE, stack, _NONE, NO_STACK,
            stream.arguments(arguments),
        )  # fmt: skip
        return self.writer.append(cells, inputs, digests, outputs, drawn)


def _op(function: Called | None, execution: Any) -> str:
    """The name of an execution's record."""
    return f"jax::{execution.name if function is None else function.name}"


def _is_gone(thing: Any) -> bool:
    """Whether an array was donated before: JAX itself raises an error when it is used again."""
    array = array_of(thing)
    return array is not None and array.is_deleted()


# A compiled function as data that a script can load: what JAX traced, in the portable form of `jax.export`.
#
# The form contains StableHLO and types, and nothing that is executed on loading. XLA compiles it anew, as it compiled the program's function, so the
# kernels are the same if the versions of JAX and XLA and the flags are.

_MOST_BYTES = 16 << 20
_FLAGS = "XLA_FLAGS"
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")


def call_document(
    name: str, jaxpr: Any, given: Sequence[Any], kept: Sequence[int], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """The call of a compiled function as JSON.

    Args:
        name: Name of the op.
        jaxpr: The traced function, closed.
        given: Its arguments, without the constants that it closes over.
        kept: Positions of those that the compiled function takes; the others have no effect.
        arrays: The kept arguments, by the names that they are stored under.

    Raises:
        NotWritable: A script cannot make such a call.
    """
    if jaxpr is None or len(given) != len(jaxpr.in_avals):
        raise NotWritable("the function was not traced in this process")
    if jaxpr.effects:
        raise NotWritable("the function has effects, such as printing or calling back into Python")
    if any(getattr(getattr(one, "sharding", None), "num_devices", 1) > 1 for one in given):
        raise NotWritable("it runs on several devices")
    program, targets = _exported(jaxpr, given, kept)
    if len(program) > _MOST_BYTES:
        raise NotWritable(
            f"the compiled function takes {len(program) / (1 << 20):,.1f} MiB, which is too much for a script"
        )
    return {
        "framework": "jax",
        "op": name,
        "program": base64.b64encode(program).decode("ascii"),
        "custom_calls": targets,
        "tensors": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in arrays.items()},
        "flags": os.environ.get(_FLAGS, ""),
        "settings": {setting: getattr(jax.config, setting) for setting in _SETTINGS},
    }


def _exported(jaxpr: Any, given: Sequence[Any], kept: Sequence[int]) -> tuple[bytes, list[str]]:
    """The function of the kept arguments in exported form, and the names of the custom calls in it."""
    is_key = [jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in jaxpr.in_avals]

    def function(*arrays: Any) -> Any:
        values = list(given)
        for position, array in zip(kept, arrays, strict=True):
            is_made = is_key[position] and not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
            values[position] = (
                jax.random.wrap_key_data(array, impl=jax.random.key_impl(given[position])) if is_made else array
            )
        results = core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *values)
        return [
            jax.random.key_data(one) if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key) else one
            for one in results
        ]

    taken = [jax.random.key_data(given[at]) if is_key[at] else given[at] for at in kept]
    shapes = [jax.ShapeDtypeStruct(jax.numpy.shape(one), jax.numpy.result_type(one)) for one in taken]
    text = jax.jit(function).lower(*shapes).as_text()
    targets = sorted(set(_targets(text)))
    allowed = [export.DisabledSafetyCheck.custom_call(target) for target in targets]
    exported = export.export(jax.jit(function), disabled_checks=allowed)(*shapes)
    try:
        return bytes(exported.serialize()), targets
    except ImportError:
        # JAX does not depend on flatbuffers.
        reason = "jax.export needs the package flatbuffers, which is not installed (pip install flatbuffers)"
        raise NotWritable(reason) from None


def _targets(text: str) -> list[str]:
    """The names after `stablehlo.custom_call @`."""
    parts = text.split("stablehlo.custom_call @")[1:]
    return [part.partition("(")[0].strip('"') for part in parts]
