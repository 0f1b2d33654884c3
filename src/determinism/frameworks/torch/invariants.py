"""Marks in a trace what must agree within the run: recomputed activations, calls of modules, replicated parameters.

Only where that was asked for, by `check --invariants`. The marks are records without results of their own, so that ops are
recorded as they are without them.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed

from determinism.frameworks.torch.edges import READ, InputEdges, Stream
from determinism.frameworks.torch.recorder import RecordMaker, Threads
from determinism.frameworks.torch.tensor_bytes import is_without_values, leaves, plain_parts
from determinism.frameworks.wrapping import Undo, wrap
from determinism.import_hook import after_import
from determinism.trace.schema import CALLED_OP, CHECKPOINTED_OP, NONE, RECOMPUTED_OP, REPLICATED_OP, RETURNED_OP
from determinism.types import Role

_CHECKPOINTS = "torch.utils.checkpoint"
_SPAN = "_determinism_span"
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


class _Span(NamedTuple):
    """Ops that stand between two marks of a stream."""

    stream: Stream
    record: int
    """The mark that began it."""


class _Region:
    """An activation checkpoint of one forward."""

    def __init__(self) -> None:
        self.first: _Span | None = None
        """Its first forward."""


def _begin(recorder: RecordMaker, name: str, of: _Span | None = None) -> _Span | None:
    """Add a mark.

    Args:
        recorder: Of the thread.
        name: What begins.
        of: What this is to agree with.
    """
    if recorder.is_waiting:
        return None
    looked = InputEdges()
    if of is not None and of.stream is recorder.stream:
        looked.edges += (of.record, 0, READ, NONE)
    number = recorder.append(Role.OP, recorder.stream.op_number(name), NONE, looked, (), ())
    return _Span(recorder.stream, number)


def _end(recorder: RecordMaker, span: _Span, tensors: list[torch.Tensor]) -> None:
    if span.stream is not recorder.stream:
        return
    looked = InputEdges()
    outputs: list[Any] = []
    looked.edges += (span.record, 0, READ, NONE)
    for tensor, digest in zip(tensors, recorder.stream.digests.of_each(tensors), strict=True):
        outputs += (recorder.layouts.number_without_storage(tensor), digest)
    recorder.append(Role.OP, recorder.stream.op_number(RETURNED_OP), NONE, looked, outputs, ())


class _CheckpointMarks:
    """Marks the first forward and each recomputation of activation checkpoints."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def wrapped(self, module: Any) -> list[Undo]:
        """Wrap what `torch.utils.checkpoint.checkpoint` calls, and not itself: the compiler knows that function, and programs import it by name."""
        hook = getattr(module, "_checkpoint_hook", None)
        arounds = (("__init__", self._made), ("__enter__", self._entered), ("__exit__", self._left))
        undo = [wrap(hook, name, around) for name, around in arounds if hook is not None]
        return [*undo, _wrap_static(module.CheckpointFunction, "forward", self._reentrant)]

    def _recomputing(self, function: Callable[..., Any], region: _Region) -> Callable[..., Any]:
        def recompute(*args: Any, **kwargs: Any) -> Any:
            recorder = self._threads.recorder()
            if recorder is None or region.first is None:
                return function(*args, **kwargs)
            span = recorder.run_unrecorded(_begin, recorder, RECOMPUTED_OP, region.first)
            try:
                return function(*args, **kwargs)
            finally:
                if span is not None:
                    recorder.run_unrecorded(_end, recorder, span, [])

        return recompute

    def _made(self, original: Callable[..., Any], hook: Any, frame: Any, *args: Any, **kwargs: Any) -> None:
        region = _Region()
        setattr(hook, _SPAN, region)
        frame.recompute_fn = self._recomputing(frame.recompute_fn, region)
        original(hook, frame, *args, **kwargs)

    def _entered(self, original: Callable[..., Any], hook: Any) -> Any:
        recorder, region = self._threads.recorder(), getattr(hook, _SPAN, None)
        if recorder is not None and region is not None:
            region.first = recorder.run_unrecorded(_begin, recorder, CHECKPOINTED_OP)
        return original(hook)

    def _left(self, original: Callable[..., Any], hook: Any, *args: Any) -> Any:
        recorder, region = self._threads.recorder(), getattr(hook, _SPAN, None)
        if recorder is not None and region is not None and region.first is not None:
            recorder.run_unrecorded(_end, recorder, region.first, [])
        return original(hook, *args)

    def _reentrant(self, original: Callable[..., Any], context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self._threads.recorder()
        if recorder is None:
            return original(context, function, *args, **kwargs)
        region = _Region()
        region.first = recorder.run_unrecorded(_begin, recorder, CHECKPOINTED_OP)
        try:
            result = original(context, function, *args, **kwargs)
        finally:
            if region.first is not None:
                recorder.run_unrecorded(_end, recorder, region.first, [])
        context.run_function = self._recomputing(context.run_function, region)
        return result


def watch_checkpoints(threads: Threads, failed: Callable[[str], None]) -> Undo:
    """Mark activation checkpoints from now on, whenever their module is imported; returns what ends that.

    Args:
        threads: Whose recorders get the marks.
        failed: Told what went wrong.
    """
    undo: list[Undo] = []

    def found(module: Any) -> None:
        undo.extend(_CheckpointMarks(threads).wrapped(module))

    def end() -> None:
        for one in (waiting, *undo):
            one()

    waiting = after_import(_CHECKPOINTS, found, failed)
    return end


def _wrap_static(owner: Any, name: str, around: Callable[..., Any]) -> Undo:
    own = vars(owner)[name]
    original = own.__func__

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    placed = staticmethod(wrapper)
    setattr(owner, name, placed)

    def undo() -> None:
        if vars(owner).get(name) is placed:
            setattr(owner, name, own)

    return undo


class CallMarks:
    """Marks the calls of outermost modules, with everything that their results depend on."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[torch.nn.Module, _Span]] = {}
        """By thread, the call of an outermost module that runs."""
        self._replicated: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def entered(self, recorder: RecordMaker, module: torch.nn.Module, arguments: Any) -> None:
        """An outermost module is about to be called."""
        self._open.pop(recorder.thread, None)
        span = recorder.run_unrecorded(_called, recorder, module, arguments)
        if span is not None:
            self._open[recorder.thread] = (module, span)

    def returned(self, recorder: RecordMaker, module: torch.nn.Module, output: Any) -> None:
        """A module returned."""
        if len(recorder.modules.calls) != 1:
            return
        if isinstance(module, torch.nn.parallel.DistributedDataParallel) and module not in self._replicated:
            self._replicated.add(module)
            recorder.run_unrecorded(_note_replicated, recorder, module)
        called, span = self._open.pop(recorder.thread, (None, None))
        if span is not None and called is module:
            recorder.run_unrecorded(_end, recorder, span, _tensors(output))


def _tensors(value: Any) -> list[torch.Tensor]:
    found = (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and not is_without_values(leaf))
    return [part for tensor in found for part in plain_parts(tensor)]


def _called(recorder: RecordMaker, module: torch.nn.Module, arguments: Any) -> _Span | None:
    if recorder.is_waiting:
        return None
    held = [tensor for tensor in (*module.parameters(), *module.buffers()) if not is_without_values(tensor)]
    given = [*_tensors(arguments), *(part for tensor in held for part in plain_parts(tensor))]
    others = [_plain_text(leaf) for leaf in leaves(arguments) if not isinstance(leaf, torch.Tensor)]
    modes = [part.training for part in module.modules()]
    settings = [torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")]
    record = recorder.event(
        Role.OP,
        CALLED_OP,
        [],
        text=f"{'grad' if torch.is_grad_enabled() else 'no_grad'} {type(module).__name__}",
        given=given,
        values=True,
        plain_values=[repr((others, modes, settings)).encode()],
    )
    return None if record < 0 else _Span(recorder.stream, record)


def _plain_text(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__


def _note_replicated(recorder: RecordMaker, module: torch.nn.parallel.DistributedDataParallel) -> None:
    if recorder.is_waiting:
        return
    group: Any = module.process_group
    ignored = {f"module.{name}" for name in module.parameters_to_ignore}
    replicated = {id(tensor) for name, tensor in module.named_parameters() if name not in ignored}
    names = [
        held.name for held in recorder.held.tensors() if held.kind == "parameter" and id(held.tensor) in replicated
    ]
    ranks = torch.distributed.get_process_group_ranks(group)
    text = json.dumps({"ranks": ranks, "names": names})
    recorder.event(Role.OP, REPLICATED_OP, [], text=text)
