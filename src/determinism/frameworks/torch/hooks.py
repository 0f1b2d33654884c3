"""Hooks outside of ops: data loading, optimizers, modules, child processes, values that leave PyTorch.

Methods of `torch.Tensor` are wrapped; each wrapper records, then calls the original method.
"""

from __future__ import annotations

import mmap
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from threading import get_ident
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import _tensor_str, serialization
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from determinism import rng
from determinism.digest import digest_bytes, digest_text
from determinism.frameworks.torch import enable, native_library
from determinism.frameworks.torch.device_digests import DeviceDigests
from determinism.frameworks.torch.modules import NO_MODULE, NOWHERE, Held, HeldNow, ModulePaths
from determinism.frameworks.torch.ops import leave_alone
from determinism.frameworks.torch.recorder import Recorder, Threads
from determinism.frameworks.torch.tensor_bytes import is_plain, is_without_values, leaves, loaded_tensors, plain_parts
from determinism.frameworks.wrapping import Undo, replace, when_imported, wrap
from determinism.process_name import takes_tasks
from determinism.trace.schema import LOAD_OP, STEP_OP, Meaning
from determinism.types import Phase, Role

# The role of a child process in the program: a data loader's worker, a member of a pool, or an independent process.


class Part(NamedTuple):
    """How the records of a process belong to the program."""

    stream: str
    """`process`; or `worker` or `pool`, where the assignment of work to processes may vary."""
    name: str | None
    """The name of the process among its siblings; None if the framework has none."""


def is_being_made() -> bool:
    """Whether `multiprocessing` is still unpickling this process, so that its purpose is not known yet."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and bool(getattr(module.current_process(), "_inheriting", False))


def part_of_program() -> Part:
    """Find this process's role in the program."""
    worker = get_worker_info()
    if worker is not None:
        return Part("worker", f"worker-{worker.id}")
    return Part("pool" if takes_tasks() else "process", None)


# Records every batch when a `DataLoader` yields it.


def watch_data_loading(threads: Threads, batch_yielded: Callable[[Any], None]) -> list[Undo]:
    """Wrap the iterators of data loaders; returns functions that remove the wrappers."""

    def around(original: Callable[[Any], Any], iterator: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(iterator)
        with recorder.progress.in_phase(Phase.DATA):
            batch = original(iterator)
            recorder.run_unrecorded(record_contents, recorder, "determinism::batch", batch)
        if recorder is threads.main:
            batch_yielded(iterator)
        return batch

    return [
        wrap(_BaseDataLoaderIter, "__next__", around),
        # Workers' data arrives in an order that varies; it is recorded when it is yielded.
        wrap(_MultiProcessingDataLoaderIter, "_try_get_data", _unrecorded(threads)),
    ]


def _unrecorded(threads: Threads) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(*args, **kwargs)
        with recorder.suspended():
            return original(*args, **kwargs)

    return around


def record_contents(recorder: Recorder, name: str, value: Any) -> None:
    """Record nested values that arrived from outside: the digests of all tensors and other values in them.

    Args:
        recorder: The recorder of the thread that received them.
        name: The record's name, which says how they arrived.
        value: The values; from now on, their tensors count as outputs of this record.
    """
    found = list(leaves(value))
    tensors = [leaf for leaf in found if isinstance(leaf, torch.Tensor) and is_plain(leaf)]
    others = [leaf for leaf in found if not isinstance(leaf, torch.Tensor)]
    record = recorder.event(
        Role.BATCH,
        name,
        tensors,
        values=True,
        plain_values=[b"".join(_plain_digest(value) for value in others)] if others else [],
    )
    if record < 0:
        return
    storages = recorder.edges.storages
    for position, tensor in enumerate(tensors):
        state, layout = storages.look(tensor)
        if layout.fills_storage:
            state.record, state.output = record, position


def _plain_digest(value: Any) -> bytes:
    """Digest a non-tensor value of a batch; objects without a plain value count by their type."""
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return digest_text(repr(value))
    interface = getattr(value, "tobytes", None)
    if interface is not None:
        return digest_bytes(interface())
    return digest_text(type(value).__qualname__)


# Leaves a device alone while a CUDA graph is captured: any query to it would end the capture with an error.


def watch_captures(threads: Threads, devices: Callable[[], DeviceDigests]) -> list[Undo]:
    """Wait for all digests before a capture begins, and request none until it ends; returns undo functions."""

    def beginning(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is not None:
            recorder.run_unrecorded(devices().settle)
        result = original(graph, *args, **kwargs)
        devices().num_captures += 1
        return result

    def ending(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(graph, *args, **kwargs)
        finally:
            devices().num_captures = max(0, devices().num_captures - 1)

    return [
        wrap(torch.cuda.CUDAGraph, "capture_begin", beginning),
        wrap(torch.cuda.CUDAGraph, "capture_end", ending),
    ]


_BY_VALUE = ("tolist",)
"""Methods that hand over the value itself."""

_BY_MEMORY = ("numpy", "__array__", "__dlpack__", "data_ptr")
"""Methods that hand over the memory: from then on, other code may read and write it."""


def watch_escapes(threads: Threads, note_racy: Callable[[str], None]) -> list[Undo]:
    """Wrap the methods by which values leave the framework.

    Args:
        threads: The threads whose recorders record it.
        note_racy: Called with what may differ in the next run because of a race.

    Returns:
        Functions that remove the wrappers.
    """
    return [
        *(wrap(torch.Tensor, name, _recording(threads, _value_escapes, name)) for name in _BY_VALUE),
        *(
            replace(torch.Tensor, name, _handing_over(threads, f"determinism::{name.strip('_')}"))
            for name in _BY_MEMORY
        ),
        wrap(torch.Tensor, "__reduce_ex__", _recording(threads, _pickled)),
        wrap(_tensor_str, "_str", _recording(threads, _value_escapes, "print")),
        wrap(torch.Tensor, "share_memory_", _recording(threads, _shared, note_racy)),
        wrap(torch, "save", _saving(threads)),
        wrap(enable, "to_array", _keeping(threads)),
    ]


def _shared(recorder: Recorder, note_racy: Callable[[str], None], tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor) and is_plain(tensor):
        _memory_escapes(recorder, "determinism::share_memory", tensor)
        recorder.edges.storages.share(tensor)
        note_racy("shared memory")


def _value_escapes(recorder: Recorder, name: str, tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        recorder.event(Role.ESCAPE, f"determinism::{name}", [tensor], values=True)


def _memory_escapes(recorder: Recorder, name: str, tensor: Any) -> None:
    # Kernels of a compiled graph are called with addresses; what they read and write is in the graph's record.
    if isinstance(tensor, torch.Tensor) and is_plain(tensor) and not recorder.graph_depth:
        recorder.event(Role.ESCAPE, name, [tensor])
        recorder.edges.storages.state(tensor).externally_writable = True


def _pickled(recorder: Recorder, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        return
    if recorder.saving is not None:
        _kept(recorder, tensor)
        recorder.saving.append(tensor)
    else:
        recorder.event(Role.ESCAPE, "determinism::pickle", [tensor], values=True)


def _recording(threads: Threads, record: Callable[..., None], *given: Any) -> Callable[..., Any]:
    def around(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is not None:
            recorder.run_unrecorded(record, recorder, *given, tensor)
        return original(tensor, *args, **kwargs)

    return around


def _in_python(tensor: Any, name: str) -> bool:
    return False


def _handing_over(threads: Threads, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def hand_over(tensor: Any) -> None:
        if (recorder := threads.recorder()) is not None:
            recorder.run_unrecorded(_memory_escapes, recorder, name, tensor)

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        below = threads.main.hand_over or _in_python

        def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # An agent that learns hands over a tensor per action: this is one call where the native code can record it.
            try:
                is_recorded = below(tensor, name)
            except Exception as error:
                threads.main.failed(name, error)
                is_recorded = True
            if not is_recorded:
                hand_over(tensor)
            return original(tensor, *args, **kwargs)

        return wrapper

    return wrapper_of


def _saving(threads: Threads) -> Callable[..., Any]:
    """Record what is saved when the call begins; in threads other than the main one, also when it ends.

    The program may keep training meanwhile and change what is being written: the file then mixes several moments.
    """

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        if recorder is None or recorder.saving is not None:
            return original(*args, **kwargs)
        recorder.saving = []
        _announce(args[1] if len(args) > 1 else kwargs.get("f"))
        try:
            result = original(*args, **kwargs)
            if recorder is not threads.main:
                recorder.run_unrecorded(_saved, recorder, recorder.saving)
            return result
        finally:
            recorder.saving = None

    return around


def _announce(file: Any) -> None:
    """Raise an audit event before a file is written: PyTorch opens it in C++, unseen by Python."""
    if isinstance(file, (str, os.PathLike)):
        sys.audit("determinism.write", file)


def _saved(recorder: Recorder, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        recorder.event(Role.CHECKPOINT, "determinism::saved", [tensor], values=True, phase=Phase.CHECKPOINT)


def _keeping(threads: Threads) -> Callable[..., Any]:
    """Record the tensors that `determinism.state` or safetensors stores as saved, like what `torch.save` saves."""

    def around(original: Callable[..., Any], content: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(content, *args, **kwargs)
        for _, tensor in loaded_tensors(content, set()):
            recorder.run_unrecorded(_kept, recorder, tensor)
        with recorder.suspended():
            return original(content, *args, **kwargs)

    return around


def _kept(recorder: Recorder, tensor: torch.Tensor) -> None:
    recorder.event(Role.CHECKPOINT, "determinism::save", [tensor], values=True, phase=Phase.CHECKPOINT)


_FLATTENERS = ("_flatten_as_ptr", "_flatten")
"""What `save` and `save_file` of safetensors call first with the tensors, in its newer and its older versions."""


def watch_safetensors(threads: Threads, failed: Callable[[str], None]) -> Undo:
    """Record what safetensors saves like what `torch.save` saves, from when the program imports it.

    Args:
        threads: The threads whose recorders record it.
        failed: Called with a message if that cannot be recorded.

    Returns:
        A function that ends this.
    """

    def imported(module: ModuleType) -> list[Undo]:
        return [wrap(module, name, _keeping(threads)) for name in _FLATTENERS if hasattr(module, name)]

    return when_imported("safetensors.torch", imported, failed)


# What processes exchange other than by ops.
#
# Objects are sent as pickled bytes, which contain addresses and so differ in every run. The objects matter: they are
# recorded when they are sent and when they arrive; the byte tensors that carry them are not.

_FUNCTIONS = (
    "all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list",
    "send_object_list",
)  # fmt: skip


def watch_exchanges(threads: Threads) -> list[Undo]:
    """Wrap the object collectives and `Work.wait`; returns functions that remove the wrappers."""
    if not torch.distributed.is_available():
        return []
    modules = (torch.distributed, torch.distributed.distributed_c10d)
    return [
        # On a wait, Gloo copies the result out of its own buffer; that copy belongs to the collective.
        wrap(torch.distributed.Work, "wait", _unrecorded(threads)),
        *(
            wrap(module, name, _exchanging(threads))
            for module in modules
            for name in _FUNCTIONS
            if hasattr(module, name)
        ),
    ]


def _exchanging(threads: Threads) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(*args, **kwargs)
        with recorder.suspended():
            result = original(*args, **kwargs)
        # The lists among the arguments now hold what arrived.
        exchanged = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, dict, torch.Tensor))]
        recorder.run_unrecorded(record_contents, recorder, "determinism::object", exchanged)
        return result

    return around


# Records what a program holds at the end of a step: parameters, gradients, buffers, optimizer state, generators.

_HELD_OPS = {
    "parameter": "determinism::parameter",
    "gradient": "determinism::gradient",
    "buffer": "determinism::buffer",
    "optimizer state": "determinism::optimizer_state",
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def generator_states(recorder: Recorder) -> list[bytes]:
    """Return digests of the states of the generators that the whole process shares."""
    return [recorder.state_digest(torch.default_generator), *rng.state_digests().values()]


def record_held(recorder: Recorder, name: str, generators: Sequence[bytes]) -> None:
    """Record everything that is held.

    Args:
        recorder: The recorder of the thread that holds it.
        name: The record's name: what ended, a step or the process.
        generators: Digests of the states of generators.
    """
    is_whole = recorder.ledger is None or name != STEP_OP or _has_state(recorder)
    # Without gradients, only the state can show that a step differs.
    kept = None if is_whole else recorder.held.gradients()
    held = _own_parts(recorder, kept or recorder.held.tensors())
    if recorder.ledger is not None and recorder.tracks_ops:
        recorder.ledger.hold(held, recorder.stream.digests.of_each(held.tensors))
    if recorder.is_waiting:
        return
    if recorder.tracks_ops and kept:
        held = _own_parts(recorder, recorder.held.tensors())
    if recorder.tracks_ops:
        recorder.hold(name, held.tensors, recorder.held.text(held), generators)
        return
    may_be_grouped = recorder.groups_held and name == STEP_OP and recorder.progress.num_ended > 0
    _record_each(recorder, held, may_be_grouped=may_be_grouped)
    recorder.event(Role.STATE, name, [], generators=generators, phase=Phase.OTHER)


def _has_state(recorder: Recorder) -> bool:
    """Whether the ledger gets everything held after this step: the first step, then every `state_every` steps."""
    progress = recorder.progress
    return progress.num_ended == 0 or (progress.step + 1) % recorder.state_every == 0


_MOST_EACH = 8
"""Tensors of one kind. More than that get a record each in the first step and at the end, and one joint record per step in between."""


def _record_each(recorder: Recorder, held: HeldNow, *, may_be_grouped: bool) -> None:
    """Record each held tensor, all with the same stack.

    Args:
        recorder: The recorder of the thread that holds them.
        held: The tensors.
        may_be_grouped: Whether many tensors of one kind may share one record.
    """
    stack = recorder.sites.stack(sys._getframe(1), recorder.modules.calls)
    digests = recorder.stream.digests.of_each(held.tensors)
    grouped: dict[str, int] = {}
    if recorder.ledger is not None:
        by_kind = recorder.ledger.hold(held, digests)
        if may_be_grouped and recorder.kept_values is None:
            counts = Counter(kind for kind, _ in held.names)
            grouped = {kind: count for kind, count in counts.items() if count > _MOST_EACH}
        for kind, count in grouped.items():
            _record_one(recorder, kind, f"(one of {count:,})", (recorder.layouts.value_number, by_kind[kind]), stack)
    for one, digest in zip(held, digests, strict=True):
        if one.kind in grouped:
            continue
        output = (recorder.layouts.number_without_storage(one.tensor), digest)
        record = _record_one(recorder, one.kind, one.name, output, stack)
        if recorder.kept_values is not None:
            recorder.kept_values.add(recorder.writer, record, [one.tensor], output)


def _record_one(recorder: Recorder, kind: str, name: str, output: tuple[int, Any], stack: int) -> int:
    arguments = recorder.arguments.text_number(name) if name else -1
    op = recorder.stream.op_number(_HELD_OPS[kind])
    cells = (recorder.number, recorder.progress.step, Phase.OTHER, Role.HELD, op, NO_MODULE, stack)
    return recorder.writer.append((*cells, NOWHERE.record, NOWHERE.stack, arguments), (), (), output)


def _own_parts(recorder: Recorder, held: HeldNow) -> HeldNow:
    if recorder.are_own(held.tensors):
        return held
    return HeldNow.of([part for whole in held for part in _parts(whole)])


def _parts(held: Held) -> Sequence[Held]:
    """Return the tensors that hold the data, without those that other processes may write at any moment.

    Reading those would be our own access, not the program's: what they hold at the end of the process may vary although
    nothing that the program reads does.
    """
    tensor = held.tensor
    if type(tensor) in _PLAIN:
        # A shortcut, as this runs for every tensor in every step: these types always have values.
        is_plain_one = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)
        is_own = is_plain_one and not (tensor.is_cpu and tensor.untyped_storage().is_shared())
        return (held,) if is_own else ()
    return [held._replace(tensor=part) for part in plain_parts(held.tensor) if _is_own(part)]


def _is_own(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and not (tensor.is_cpu and tensor.untyped_storage().is_shared())


# Records the whole tensors that `torch.load` returns, so that their digests are known even if only parts are read.

LOADERS = ("_load", "_legacy_load")
"""Called by `torch.load` for its two file formats. A frame of our own around `torch.load` shows in its warnings."""


def watch_loading(threads: Threads) -> list[Undo]:
    """Watch `torch.load`; its results never count as a difference, they only show where a difference came from.

    Returns:
        Functions that remove the wrappers.
    """

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        recorder = threads.recorder()
        # Reading a file that is only memory-mapped would be our own access, not the program's.
        if recorder is not None and recorder.tracks_ops and kwargs.get("overall_storage") is None:
            recorder.run_unrecorded(_record_load, recorder, loaded)
        return loaded

    return [wrap(serialization, name, around) for name in LOADERS if hasattr(serialization, name)]


def _record_load(recorder: Recorder, loaded: Any) -> None:
    tensors = [tensor for _, tensor in loaded_tensors(loaded, set())]
    if tensors:
        recorder.event(Role.OP, LOAD_OP, [], given=tensors, phase=Phase.CHECKPOINT)


# Follows every module call in every recorded thread.

_DYNAMO = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
_REMEMBERED = "unpatched_nn_module_call"
_frame = sys._getframe
Returned = Callable[[Recorder, torch.nn.Module, Any, Any], None]
Entered = Callable[[Recorder, torch.nn.Module, Any], None]


def watch_module_calls(threads: Threads, returned: Returned | None, entered: Entered | None = None) -> list[Undo]:
    """Wrap `Module.__call__`.

    Global hooks would also work, but they take Dynamo off its usual path, make it warn on the program's error stream,
    and cost more.

    Args:
        threads: The threads whose module paths are kept up to date.
        returned: Called with recorder, module, arguments and output when a module returns, before it is left.
        entered: Called with recorder, module and arguments before an outermost module is called.

    Returns:
        Functions that remove the wrapper.
    """

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        # PyTorch's profiler expects the module in the local variable `self`, and crashes without it.
        def call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            recorder = threads.main
            if not recorder.is_active or get_ident() != recorder.thread:
                other = threads.recorder()
                if other is None:
                    return original(self, *args, **kwargs)
                recorder = other
            paths = recorder.modules
            if paths.calls and returned is None and (recorder.is_waiting or not recorder.tracks_ops):
                # Where no ops are recorded, only the outermost modules matter.
                return original(self, *args, **kwargs)
            if not paths.calls:
                recorder.progress.phase = Phase.FORWARD
                if entered is not None:
                    entered(recorder, self, (args, kwargs))
                if recorder.progress.updates_from >= 0 and torch.is_grad_enabled():
                    recorder.run_unrecorded(_look_for_update, recorder, ())
            paths.enter(self, _frame())
            try:
                output = original(self, *args, **kwargs)
                if returned is not None:
                    returned(recorder, self, (args, kwargs), output)
                return output
            finally:
                paths.leave(self)

        needs_place = returned is not None or threads.main.tracks_ops
        return _noted_below(threads, original, call, returned) if needs_place and entered is None else call

    plain: Any = torch.nn.Module.__call__
    take_off = replace(torch.nn.Module, "__call__", wrapper_of)
    wrapper: Any = torch.nn.Module.__call__
    _tell_dynamo(plain, wrapper)
    leave_alone(wrapper, with_callees=False)
    for own in (ModulePaths.enter, ModulePaths.leave, Threads.recorder, returned, entered):
        if own is not None:
            leave_alone(getattr(own, "__func__", own))
    return [take_off, lambda: _tell_dynamo(wrapper, plain)]


def _noted_below(
    threads: Threads, original: Callable[..., Any], call: Callable[..., Any], returned: Returned | None
) -> Callable[..., Any]:
    """Note module calls below Python, where the recorder can.

    Args:
        threads: The recorders.
        original: Calls a module.
        call: Calls a module and notes it in Python, for calls that the native code does not handle.
        returned: See `watch_module_calls`.
    """
    if threads.main.module_calls is None:
        return call
    enter, leave = threads.main.module_calls

    def noted(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if not enter(self):
            return call(self, *args, **kwargs)
        try:
            output = original(self, *args, **kwargs)
            if returned is not None and (recorder := threads.recorder()) is not None:
                returned(recorder, self, (args, kwargs), output)
            return output
        finally:
            leave(self)

    leave_alone(call, with_callees=False)
    return noted


def _tell_dynamo(known: Any, now: Any) -> None:
    """Make Dynamo take another function for the original `Module.__call__`.

    It remembers the original from its import and skips it to trace `forward` directly; it traces any other function.
    """
    for name in _DYNAMO:
        module = sys.modules.get(name)
        if getattr(module, _REMEMBERED, None) is known:
            setattr(module, _REMEMBERED, now)


def record_call(recorder: Recorder, module: torch.nn.Module, inputs: Any, output: Any) -> None:
    """Record a module call, at the level that records no ops."""
    args, kwargs = inputs
    is_plain_call = not kwargs and all(isinstance(value, torch.Tensor) for value in args)
    given, made = args if is_plain_call else _tensors_in(inputs), _tensors_in(output)
    recorder.module_returned(f"module::{type(module).__name__}", given, made)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


# Backward passes and optimizer steps: where losses are, and where steps end.


def watch_optimizers(threads: Threads, stepped: Callable[[], None]) -> list[Undo]:
    """Hook backward passes, optimizers and gradient scalers.

    Args:
        threads: The threads whose recorders get the losses, and what is held at the end of each step.
        stepped: Called after an optimizer stepped or was skipped.

    Returns:
        Functions that remove the hooks.
    """

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if (recorder := threads.recorder()) is not None:
            recorder.progress.optimizer_begins(optimizer)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if (recorder := threads.recorder()) is not None:
            recorder.held.add_optimizer(optimizer)
            recorder.run_unrecorded(recorder.progress.optimizer_ends, optimizer)
            stepped()

    handles = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
    return [
        *(handle.remove for handle in handles),
        _follow_backwards(threads, stepped),
        _follow_scaler(threads, stepped),
    ]


def _follow_backwards(threads: Threads, stepped: Callable[[], None]) -> Undo:
    def around(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        if recorder is not None and torch._C._current_autograd_node() is None:
            if recorder.progress.may_update_itself:
                recorder.run_unrecorded(_look_for_update, recorder, outputs)
                stepped()
            if kwargs.get("accumulate_grad"):
                recorder.run_unrecorded(_loss, recorder, outputs)
            recorder.progress.backward_begins(recorder.writer.num_records)
        try:
            return original(outputs, *args, **kwargs)
        finally:
            if recorder is not None and recorder.progress.phase is Phase.FORWARD:
                recorder.progress.phase = Phase.OTHER

    return wrap(torch.autograd, "_engine_run_backward", around)


def _look_for_update(recorder: Recorder, outputs: Any) -> None:
    """Check for an update since the last backward: without recorded ops, only the trained tensors can show it."""
    progress = recorder.progress
    if (recorder.tracks_ops and not recorder.is_waiting) or (
        progress.updates_from < 0 and not recorder.updates_itself()
    ):
        return
    recorder.held.add_trained(outputs)
    if recorder.held.has_changed(recorder.stream.digests.of_each) and progress.updates_from >= 0:
        recorder.was_updated()


def _loss(recorder: Recorder, outputs: Any) -> None:
    tensors = [output for output in outputs if isinstance(output, torch.Tensor) and not is_without_values(output)]
    if outputs and not tensors:
        return
    record = recorder.event(Role.LOSS, "determinism::loss", tensors, values=True, phase=Phase.FORWARD)
    if tensors:
        value = _number(tensors[0])
        if recorder.ledger is not None:
            recorder.ledger.loss(value)
        if record < 0:
            return
        meaning = Meaning.UNKNOWN_LOSS if value is None else Meaning.LOSS
        edge = recorder.look(tensors[:1]).edges if recorder.tracks_ops else ()
        recorder.writer.number(meaning, record, edge, value or 0.0, recorder.progress.step)


def _number(loss: torch.Tensor) -> float | None:
    """Return the value of a loss on the CPU; None for a loss elsewhere, as reading it would wait for the device."""
    # A subclass that wraps a tensor, such as DTensor, might ask other processes for the value.
    if (
        type(loss) is not torch.Tensor
        or not is_plain(loss)
        or not loss.is_cpu
        or loss.numel() != 1
        or not loss.is_floating_point()
    ):
        return None
    try:
        # The program's own modes must not see this read.
        with torch._C._DisableTorchDispatch():
            return float(loss.detach().item())
    except RuntimeError:
        # Inside a transform such as `vmap` there is no single value.
        return None


def _follow_scaler(threads: Threads, stepped: Callable[[], None]) -> Undo:
    def around(original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        before = recorder.progress.optimizer_calls if recorder is not None else 0
        result = original(scaler, optimizer, *args, **kwargs)
        if recorder is not None and recorder.progress.optimizer_calls == before:
            recorder.run_unrecorded(recorder.progress.optimizer_skipped, optimizer)
            stepped()
        return result

    return wrap(torch.amp.GradScaler, "step", around)


# Code whose work on tensors no dispatch mode sees: replayed CUDA graphs, and extensions written in C or C++.

_MOST_BYTES = 64 << 20
"""Larger files are not searched: it would delay the program's exit for too long."""
_WITHOUT_TORCH = frozenset({"numpy", "scipy", "pandas", "pyarrow", "sklearn", "xxhash", "PIL", "matplotlib"})
"""Packages with many extensions, none of them linked with PyTorch."""
_LIBRARY = b"libtorch_python"
"""The library that an extension links with if it takes tensors as Python objects."""


EXTENSION_REASON = "its direct changes to tensor memory are not recorded; ops that it calls are"


def watch_replays(threads: Threads) -> Undo:
    """Count every replay of a CUDA graph as a blind spot; returns a function that undoes this."""

    def around(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is not None:
            recorder.writer.blind_spot(
                "cuda-graph",
                "replay of a CUDA graph",
                "its kernels run without ops; what they write is digested where an op reads memory that no record wrote",
            )
        return original(graph, *args, **kwargs)

    return wrap(torch.cuda.CUDAGraph, "replay", around)


def extensions() -> Iterator[str]:
    """Yield the names of loaded extension modules linked with PyTorch, except PyTorch's own and the native recorder.

    Ops that an extension registers with the dispatcher are seen like any other; direct memory access by its functions
    is not.
    """
    skipped = (os.path.dirname(torch.__file__) + os.sep, sysconfig.get_path("stdlib") + os.sep + "lib-dynload")
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(tuple(EXTENSION_SUFFIXES)) or path.startswith(skipped):
            continue
        if name != native_library.MODULE and name.partition(".")[0] not in _WITHOUT_TORCH and _mentions_library(path):
            yield name


def _mentions_library(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            if not 0 < os.fstat(file.fileno()).st_size <= _MOST_BYTES:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(_LIBRARY) >= 0
    except OSError:
        return False
