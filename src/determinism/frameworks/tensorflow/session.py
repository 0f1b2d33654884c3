"""Starts and stops recording of TensorFlow in this process."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as client_session
from tensorflow.python.distribute import cross_device_ops, mirrored_run, parameter_server_strategy_v2, values
from tensorflow.python.eager import backprop, context, execute
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction
from tensorflow.python.framework import config, dtypes, func_graph, ops

from determinism import rng
from determinism.digest import digest_text
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.named_stream import NamedLedger, Stream
from determinism.frameworks.progress import thread_of_program
from determinism.frameworks.session import AdapterSession
from determinism.frameworks.tensorflow import enable
from determinism.frameworks.tensorflow.functions import Probe
from determinism.frameworks.tensorflow.ops import digest_array, digest_tensor, has_value
from determinism.frameworks.tensorflow.recorder import Recorder, announce_files
from determinism.frameworks.tensorflow.records import as_array
from determinism.frameworks.wrapping import Undo, hide_own_frames, when_imported, wrap
from determinism.run_spec import RunSpec
from determinism.source_files import Owner, owner_of
from determinism.trace.schema import RESULTS_OP, STEP_OP, Meaning
from determinism.types import Level, Phase, ProcessFolders, Role

# What the program made before recording began: traced functions, and optimizers that step in them.

_KERAS_OPTIMIZERS = "keras.src.optimizers.base_optimizer"


def earlier_functions() -> Iterator[tuple[str, Any]]:
    """Name and graph of each traced function."""
    for thing in gc.get_objects():
        if type(thing) is AtomicFunction and thing._cached_graph is not None:
            yield thing.name.decode(), thing._cached_graph


def earlier_optimizers() -> list[Any]:
    """The existing Keras optimizers, in no particular order."""
    module = sys.modules.get(_KERAS_OPTIMIZERS)
    kind = getattr(module, "BaseOptimizer", None)
    if kind is None:
        return []
    return [thing for thing in gc.get_objects() if isinstance(type(thing), type) and issubclass(type(thing), kind)]


def counts_steps_of(graph: Any, optimizer: Any) -> bool:
    """Whether a function steps an optimizer: it captures the optimizer's step counter."""
    counter = getattr(getattr(optimizer, "iterations", None), "value", None)
    handle = getattr(counter, "handle", None)
    return handle is not None and any(external is handle for external, _ in graph.captures)


# Where tensor values leave TensorFlow without an op: as NumPy arrays, as Python numbers, and as printed text.

_KERAS_BACKEND = "keras.src.backend"
_KERAS_LAYERS = "keras.src.layers"
_PRINTED = ("numpy_text", "value_text")


def install(recorder: Recorder) -> list[Undo]:
    """Wrap the ways out of the framework; return functions that remove the wrappers.

    All methods of a tensor that return its value to Python call `_numpy`. Direct reads of the memory, as by `numpy.asarray`,
    are not seen; see `Values.unread`.
    """

    def hook_keras(_: Any) -> list[Undo]:
        return [wrap(sys.modules[_KERAS_BACKEND], "convert_to_numpy", _recording(recorder, is_method=False))]

    return [
        wrap(ops._EagerTensorBase, "_numpy", _recording(recorder, is_method=True)),
        # If Keras imported TensorFlow, its backend is not complete when that import ends; once its layers are imported, it is.
        when_imported(_KERAS_LAYERS, hook_keras, recorder.failed_to_hook),
        *(wrap(enable, name, _unrecorded(recorder)) for name in ("capture", "seed_keras")),
    ]


def _unrecorded(recorder: Recorder) -> Callable[..., Any]:
    """Hide reads by `determinism.enable`, which saves generator states: it is not the program that reads them."""

    def around(original: Callable[..., Any], *args: Any) -> Any:
        if not recorder.is_own():
            return original(*args)
        with recorder.suspended():
            return original(*args)

    return around


def _recording(recorder: Recorder, *, is_method: bool) -> Callable[..., Any]:
    def around(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # For a variable, Keras converts the tensor that it reads from it, which calls this again.
        if not recorder.is_own() or not isinstance(tensor, ops._EagerTensorBase):
            return original(tensor, *args, **kwargs)
        way = sys._getframe(2).f_code.co_name if is_method else "numpy"
        # Strings that libraries read, such as file names, do not enter computations.
        is_text = is_method and way not in _PRINTED and tensor.dtype == dtypes.string
        if not (is_text and owner_of(sys._getframe(3)) is not Owner.USER):
            recorder.run_unrecorded(
                _escaped, recorder, f"determinism::{'print' if way in _PRINTED else way.strip('_')}", tensor
            )
        with recorder.suspended():
            return original(tensor, *args, **kwargs)

    return around


def _escaped(recorder: Recorder, name: str, tensor: Any) -> None:
    if not has_value(tensor.dtype):
        return
    value = recorder.value(tensor)
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)])
    if tensor.dtype.is_floating and tensor.shape.rank == 0:
        edge = (value.record, value.output)
        recorder.writer.number(Meaning.READ, number, edge, float(tensor._numpy_internal()), recorder.progress.step)


# The state of a program: the variables of its optimizers, and those that they train, with their names.

_MOST_RESULTS = 1000
_HELD_OPS = {"parameter": "determinism::parameter", "optimizer state": "determinism::optimizer_state"}


class HeldVariables:
    """Finds the program's state through its optimizers."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []

    @property
    def has_any(self) -> bool:
        """Whether an optimizer is known."""
        return any(known() is not None for known in self._optimizers)

    def add_optimizer(self, optimizer: Any) -> None:
        """Note an optimizer that steps."""
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def variables(self) -> Iterator[tuple[str, str, Any]]:
        """Kind, name and variable; each variable once, in the order in which the program made them."""
        seen: set[int] = set()
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is None:
                continue
            trained = list(getattr(optimizer, "_trainable_variables", None) or ())
            own = list(getattr(optimizer, "variables", None) or ())
            for sort, variables in (("parameter", trained), ("optimizer state", own)):
                for variable in variables:
                    if id(variable) not in seen:
                        seen.add(id(variable))
                        name = str(getattr(variable, "path", None) or variable.name)
                        for replica, component in enumerate(_components(variable)):
                            yield sort, name if replica == 0 else f"{name}/replica_{replica}", component


def _components(variable: Any) -> Sequence[Any]:
    """The TensorFlow variables behind a variable of Keras or of a distribution strategy: one for each replica that has its own."""
    held = getattr(variable, "value", variable)
    # On TensorFlow's own variables, `value` is a method.
    held = variable if callable(held) else held
    if isinstance(held, values.DistributedVariable):
        return tuple(held.values)
    return (getattr(held, "_v", held),)


def generator_states() -> list[bytes]:
    """Digests of the states of the process-wide generators."""
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    held = context.context()
    seeds = getattr(held, "_rng", None)
    states = [digest_text(f"{held._seed} {seeds.getstate() if seeds is not None else None}")]
    generator = stateful_random_ops.global_generator
    if generator is not None:
        states.append(digest_text(str(generator.state.numpy().tolist())))
    return [*states, *rng.state_digests().values()]


def record_held(recorder: Recorder, held: HeldVariables, name: str, generators: Sequence[bytes]) -> None:
    """Record the state of the program.

    Args:
        recorder: The recorder of the thread that holds it.
        held: Finds the variables.
        name: Name of the record: the end of a step, or of the process.
        generators: Digests of the states of generators.
    """
    unread = recorder.values.unread.take()
    if unread and recorder.tracks_ops:
        recorder.emit(Role.ESCAPE, RESULTS_OP, unread[:_MOST_RESULTS], phase=Phase.OTHER)
    names: list[list[str]] = []
    held_now: list[Value] = []
    for sort, path, variable in held.variables():
        handle = getattr(variable, "handle", None)
        if handle is None:
            continue
        resource = recorder.resource(handle)
        value = recorder.variables.get(resource.key) if recorder.tracks_ops else None
        if value is None and (read := recorder.read_variable(resource)) is not None:
            value = Value(EXTERNAL, 0, *read)
        if value is not None:
            names.append([sort, path])
            held_now.append(value)
    if recorder.ledger is not None and name == STEP_OP:
        sorts = [sort for sort, _ in names]
        recorder.ledger.end_step(recorder.progress.step, zip(sorts, held_now, strict=True), generators)
    if recorder.tracks_ops:
        recorder.emit(Role.STATE, name, held_now, arguments=json.dumps(names), drawn=generators, phase=Phase.OTHER)
        return
    recorder.hold((_HELD_OPS[sort], path, value) for (sort, path), value in zip(names, held_now, strict=True))
    recorder.emit(Role.STATE, name, [], drawn=generators, phase=Phase.OTHER)


# Gradients and optimizers: where losses are, and where steps end.


class Optimization:
    """Tracks which optimizers step in which graphs."""

    def __init__(self, recorder: Recorder, held: HeldVariables, stepped: Callable[[], None]) -> None:
        """Begin before any step.

        Args:
            recorder: Notified where steps end.
            held: Notified of optimizers.
            stepped: Called after an optimizer stepped.
        """
        self._recorder = recorder
        self._held = held
        self._stepped = stepped
        self._in_graphs: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._earlier = [weakref.ref(optimizer) for optimizer in earlier_optimizers()]

    def install(self) -> list[Undo]:
        """Hook gradients and optimizers; return functions that remove the hooks."""
        self._recorder.calls.returned = self._function_returned

        def hook_keras(module: Any) -> list[Undo]:
            return [wrap(module.BaseOptimizer, "apply", self._apply)]

        return [
            wrap(backprop.GradientTape, "gradient", self._gradient),
            when_imported(_KERAS_OPTIMIZERS, hook_keras, self._recorder.failed_to_hook),
        ]

    def _apply(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.is_own():
            return original(optimizer, *args, **kwargs)
        self._held.add_optimizer(optimizer)
        if not context.executing_eagerly():
            self._note_graphs(optimizer)
            return original(optimizer, *args, **kwargs)
        if not _is_last_replica():
            # All replicas make one step together.
            return original(optimizer, *args, **kwargs)
        recorder.progress.optimizer_begins(optimizer)
        try:
            return original(optimizer, *args, **kwargs)
        finally:
            recorder.run_unrecorded(recorder.progress.optimizer_ends, optimizer)
            self._stepped()

    def _note_graphs(self, optimizer: Any) -> None:
        """Note that the graph being built, and those around it, step this optimizer whenever they run."""
        graph = ops.get_default_graph()
        while isinstance(graph, func_graph.FuncGraph):
            found = self._in_graphs.setdefault(graph, [])
            if not any(one() is optimizer for one in found):
                found.append(weakref.ref(optimizer))
            graph = graph.outer_graph

    def _function_returned(self, graph: Any) -> None:
        if graph is None:
            return
        recorder = self._recorder
        if graph not in self._in_graphs:
            earlier = (one for one in self._earlier if (made := one()) is not None and counts_steps_of(graph, made))
            self._in_graphs[graph] = list(earlier)
        for reference in self._in_graphs[graph]:
            optimizer = reference()
            if optimizer is not None:
                self._held.add_optimizer(optimizer)
                recorder.progress.optimizer_begins(optimizer)
                recorder.run_unrecorded(recorder.progress.optimizer_ends, optimizer)
                self._stepped()

    def _gradient(self, original: Callable[..., Any], tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        if not recorder.is_own() or not context.executing_eagerly():
            return original(tape, target, *args, **kwargs)
        recorder.run_unrecorded(_loss, recorder, target)
        recorder.backward_depth += 1
        try:
            return original(tape, target, *args, **kwargs)
        finally:
            recorder.backward_depth -= 1
            if recorder.progress.phase in (Phase.INIT, Phase.FORWARD):
                recorder.progress.phase = Phase.OTHER


def _is_last_replica() -> bool:
    """Whether no replica of this process steps after this thread; also true outside of a distribution strategy."""
    devices = getattr(threading.current_thread(), "devices", None)
    return devices is None or threading.current_thread().replica_id == len(devices) - 1  # type: ignore[attr-defined]


def _loss(recorder: Recorder, target: Any) -> None:
    tensors = [
        t
        for t in (target if isinstance(target, (list, tuple)) else [target])
        if hasattr(t, "_id") and has_value(t.dtype)
    ]
    values = [recorder.value(tensor) for tensor in tensors]
    number = recorder.emit(
        Role.LOSS, "determinism::loss", values, [(v.layout, v.digest) for v in values], phase=Phase.FORWARD
    )
    if tensors:
        is_number = tensors[0].dtype.is_floating and tensors[0].shape.rank == 0
        held = float(tensors[0]._numpy_internal()) if is_number else 0.0
        if recorder.ledger is not None:
            recorder.ledger.loss(values, held if is_number else None)
        meaning = Meaning.LOSS if is_number else Meaning.UNKNOWN_LOSS
        recorder.writer.number(meaning, number, (values[0].record, values[0].output), held, recorder.progress.step)


# TensorFlow's settings that change results, as they were when recording began.

_BUILT_WITH = {"CUDA": "cuda_version", "cuDNN": "cudnn_version"}


def recorded_settings() -> dict[str, str]:
    """Name and value of each setting, as text."""
    values = {
        "tf.config.experimental.enable_op_determinism()": config.is_op_determinism_enabled(),
        "tf.config.threading.get_intra_op_parallelism_threads()": tf.config.threading.get_intra_op_parallelism_threads(),
        "tf.config.threading.get_inter_op_parallelism_threads()": tf.config.threading.get_inter_op_parallelism_threads(),
    }
    return {name: str(value) for name, value in values.items()}


def libraries() -> dict[str, str]:
    """Name and version of the libraries that this build of TensorFlow computes with on a GPU."""
    built = tf.sysconfig.get_build_info()
    return {f"library {name}": str(built.get(key, "none")) for name, key in _BUILT_WITH.items()}


# Distribution strategies: replicas run in threads of their own, one at a time, while the recorded thread waits for them: their ops are
# recorded as its own. What they reduce eagerly is computed by concurrent threads: that is one record, with all inputs and outputs.

_REASON = "ops of threads other than the one that imported TensorFlow are not recorded"


class OtherThreads:
    """Notes each thread that runs an op, once."""

    def __init__(self, recorder: Recorder, note_racy: Callable[[str], None]) -> None:
        """Take the recorder, whose writer keeps blind spots, and a callback for threads that take part."""
        self._recorder = recorder
        self._note_racy = note_racy
        self._noted: set[int] = set()
        self.is_reducing = False
        """Whether the recorded thread waits for threads that reduce the replicas' results, which is one record."""

    def install(self) -> Undo:
        """Listen in every thread that starts from now on; return a function that stops it."""

        def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
            if not self.is_reducing:
                # TensorFlow keeps its callbacks per thread.
                context.context()._thread_local_data.op_callbacks.append(self.used)
            return original(thread)

        return wrap(threading.Thread, "_bootstrap_inner", around)

    def used(self, *_: Any, **__: Any) -> None:
        """Note that this thread ran an op, about which TensorFlow tells its callbacks more, or a function."""
        recorder, ident = self._recorder, threading.get_ident()
        if ident == recorder.thread or ident in self._noted or recorder.is_replica() or not recorder.is_active:
            return
        self._noted.add(ident)
        if (thread := thread_of_program()) is not None:
            recorder.writer.blind_spot("thread", thread.name, _REASON)
            self._note_racy("threads")


_SERVERS = (
    "variables live in other processes, and steps that a coordinator schedules run in workers, whose ops are not "
    "recorded; only what this process itself computes and fetches is recorded"
)


class Strategies:
    """Follows what distribution strategies run in this process."""

    def __init__(self, recorder: Recorder, threads: OtherThreads) -> None:
        """Take the recorder, and the object that notes unrecorded threads."""
        self._recorder = recorder
        self._threads = threads

    def install(self) -> list[Undo]:
        """Follow strategies from now on; return functions that stop it."""
        return [
            wrap(mirrored_run._MirroredReplicaThread, "__init__", self._replica_made),
            wrap(cross_device_ops.CollectiveAllReduce, "_all_reduce_per_replica_values", self._reduce),
            wrap(parameter_server_strategy_v2.ParameterServerStrategyV2, "__init__", self._uses_servers),
        ]

    def _replica_made(
        self, original: Callable[..., None], replica: threading.Thread, *args: Any, **kwargs: Any
    ) -> None:
        """Count the replicas of the recorded thread as this thread, at every level.

        They inherit the callbacks of the thread that starts them, and run one at a time, in a fixed order.
        """
        original(replica, *args, **kwargs)
        if threading.get_ident() == self._recorder.thread or self._recorder.is_replica():
            self._recorder.replicas.add(replica)

    def _uses_servers(self, original: Callable[..., None], strategy: Any, *args: Any, **kwargs: Any) -> None:
        if self._recorder.is_own():
            self._recorder.writer.blind_spot("parameter-server", type(strategy).__name__, _SERVERS)
        return original(strategy, *args, **kwargs)

    def _reduce(
        self,
        original: Callable[..., Any],
        reducing: Any,
        operation: Any,
        values: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        recorder = self._recorder
        if not recorder.tracks_ops or not recorder.is_own() or not context.executing_eagerly():
            return original(reducing, operation, values, *args, **kwargs)
        self._threads.is_reducing = True
        try:
            with recorder.suspended():
                result = original(reducing, operation, values, *args, **kwargs)
        finally:
            self._threads.is_reducing = False
        is_local = reducing._group_size <= len(reducing._devices)
        name = "tf::AllReduce" if is_local else "tf::CollectiveReduce"
        recorder.run_unrecorded(self._record_reduced, name, str(operation), values, result)
        return result

    def _record_reduced(self, name: str, operation: str, values: Sequence[Any], result: Any) -> None:
        recorder = self._recorder
        given = [recorder.value(tensor) for tensor in _tensors_of(values)]
        made = _tensors_of(result)
        digests = [(recorder.layout(tensor), digest_tensor(tensor)) for tensor in made]
        number = recorder.emit(Role.OP, name, given, digests, arguments=operation)
        for position, tensor in enumerate(made):
            recorder.values.made(tensor, Value(number, position, *digests[position]))


def _tensors_of(values: Sequence[Any]) -> list[Any]:
    """The tensors behind per-replica values, replica by replica."""
    parts = [part for value in values for part in getattr(value, "values", (value,))]
    tensors = tf.nest.flatten(parts, expand_composites=True)
    return [tensor for tensor in tensors if hasattr(tensor, "_id") and has_value(tensor.dtype)]


_OF_SESSIONS = "their ops and results are not recorded; ops outside of them that use the results are"
_NO_LAYERS = "they are not recorded; the state at the end of each step is, and --level op records every op"
_FORKED = (
    "A process that was forked after TensorFlow had been imported used TensorFlow, and was not recorded. Use "
    "the start method spawn."
)


class Session(AdapterSession):
    """One recording of this process, from its creation to `close`."""

    framework = "tensorflow"
    _used_after_fork = _FORKED

    def __init__(self, folders: ProcessFolders, spec: RunSpec) -> None:
        super().__init__(folders, spec)
        self._held = HeldVariables()
        self.recorder = Recorder(tracks_ops=self.level is Level.OP, paranoid=spec.paranoid)
        self._threads = OtherThreads(self.recorder, self.note_racy)
        self._strategies = Strategies(self.recorder, self._threads)
        self._begin()
        self._show_own_frames = hide_own_frames()
        self._install()

    def _begin(self) -> None:
        self._open(libraries(), recorded_settings())
        recorder = self.recorder
        recorder.step_ended = self._end_step
        recorder.arrived = self._batch_arrived
        recorder.note_racy = self.note_racy
        recorder.begin(Stream(self.writer))
        if self._keeps_ledger:
            recorder.ledger = NamedLedger(self.writer.folder, recorder.stream)
        recorder.capture = self._capture(as_array, digest_array)
        if recorder.capture is not None:
            Probe.keeps_arrays = True
            # Only runs that examine a record need this module.
            from determinism.frameworks.tensorflow.compiled import CompiledCall

            recorder.calls.library.look_into = CompiledCall

    def _install(self) -> None:
        recorder = self.recorder
        self._undo += announce_files()
        self._undo += Optimization(recorder, self._held, self._end_if_asked).install()
        for name, graph in earlier_functions():
            recorder.calls.library.made(name, graph)
        self._undo.append(wrap(atomic_function, "from_func_graph", self._function_made))
        self._undo.append(wrap(context.Context, "call_function", self._function_called))
        self._undo += self._strategies.install()
        self._undo.append(wrap(client_session.BaseSession, "run", self._session_runs))
        if self.level is not Level.OP:
            if self.level is Level.MODULE:
                self.writer.blind_spot("level", "calls of layers", _NO_LAYERS)
            return
        self._undo.append(self._threads.install())
        self._undo += install(recorder)
        self._undo.append(recorder.keras_seeds.install())
        callbacks = context.context()._thread_local_data.op_callbacks
        callbacks.append(recorder.op_ran)
        self._undo.append(lambda: callbacks.remove(recorder.op_ran) if recorder.op_ran in callbacks else None)
        if execute.execute is execute.quick_execute:
            execute.execute = execute.execute_with_callbacks
            self._undo.append(lambda: setattr(execute, "execute", execute.quick_execute))

    def _function_made(self, original: Callable[..., Any], name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        function = original(name, graph, *args, **kwargs)
        try:
            self.recorder.calls.library.made(function.name.decode(), graph)
        except Exception as error:
            self.recorder.failed("functions", error)
        return function

    def _function_called(
        self, original: Callable[..., Any], held: Any, name: bytes, inputs: list[Any], num_outputs: int
    ) -> Any:
        recorder = self.recorder
        if not recorder.is_own():
            self._threads.used()
            return original(held, name, inputs, num_outputs)
        if self.level is Level.OP:
            return recorder.calls.call(original, held, name, inputs, num_outputs)
        outputs = original(held, name, inputs, num_outputs)
        recorder.calls.returned(recorder.calls.library.graphs.get(name.decode()))
        return outputs

    def _session_runs(self, original: Callable[..., Any], session: Any, *args: Any, **kwargs: Any) -> Any:
        if self.recorder.is_own():
            self.writer.blind_spot("session", "graphs run by tf.compat.v1.Session", _OF_SESSIONS)
        return original(session, *args, **kwargs)

    def _record_state(self, op: str) -> None:
        record_held(self.recorder, self._held, op, generator_states())

    def _tensors_in(self, value: Any) -> list[Any]:
        return [leaf for leaf in tf.nest.flatten(value) if tf.is_tensor(leaf) and hasattr(leaf, "_id")]

    def _has_optimizer(self) -> bool:
        return self._held.has_any
