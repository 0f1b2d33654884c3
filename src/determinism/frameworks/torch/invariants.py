"""Marks in a trace what must agree within the run: recomputed activations, module calls, replicas, shards, saved files.

Used only by `check --invariants`. The marks are records without results, so that ops are recorded as they would be
without them.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import serialization
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from determinism.frameworks.torch.edges import READ, InputEdges, Stream
from determinism.frameworks.torch.hooks import LOADERS
from determinism.frameworks.torch.recorder import RecordMaker, Threads
from determinism.frameworks.torch.tensor_bytes import is_without_values, leaves, loaded_tensors, plain_parts
from determinism.frameworks.wrapping import Replaced, Undo, when_imported, wrap
from determinism.trace.schema import (
    CALLED_OP,
    CHECKPOINTED_OP,
    DIVIDED_OP,
    GATHERED_OP,
    LOADED_OP,
    NONE,
    RECOMPUTED_OP,
    REPLICATED_OP,
    RETURNED_OP,
    SAVED_OP,
)
from determinism.types import Phase, Role

_CHECKPOINTS = "torch.utils.checkpoint"
_SPAN = "_determinism_span"
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


class _Span(NamedTuple):
    """The ops between two marks of a stream."""

    stream: Stream
    record: int
    """The mark at its beginning."""


class _Region:
    """An activation checkpoint of one forward pass."""

    def __init__(self) -> None:
        self.first: _Span | None = None
        """Its first forward."""


def _begin(recorder: RecordMaker, name: str, of: _Span | None = None) -> _Span | None:
    """Add a mark."""
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
        """Wrap what `checkpoint` calls, not the function itself: Dynamo knows it, and programs import it by name."""
        hook = getattr(module, "_checkpoint_hook", None)
        arounds = (("__init__", self._made), ("__enter__", self._entered), ("__exit__", self._left))
        undo = [wrap(hook, name, around) for name, around in arounds if hook is not None]
        function = module.CheckpointFunction
        return [*undo, Replaced(function, "forward", staticmethod(partial(self._reentrant, function.forward)))]

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
    """Mark activation checkpoints from now on, whenever their module is imported; returns a function that ends this.

    Args:
        threads: The threads whose recorders get the marks.
        failed: Called with what went wrong.
    """
    return when_imported(_CHECKPOINTS, _CheckpointMarks(threads).wrapped, failed)


class CallMarks:
    """Marks the calls of outermost modules, with everything that their results depend on."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[torch.nn.Module, _Span]] = {}
        """By thread, the running call of an outermost module."""
        self._replicated: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._shards = _ShardMarks()

    def entered(self, recorder: RecordMaker, module: torch.nn.Module, arguments: Any) -> None:
        """Mark that an outermost module is about to be called."""
        self._open.pop(recorder.thread, None)
        recorder.run_unrecorded(self._shards.follow, recorder, module)
        span = recorder.run_unrecorded(_called, recorder, module, arguments)
        if span is not None:
            self._open[recorder.thread] = (module, span)

    def close(self) -> None:
        """Stop following shards."""
        self._shards.close()

    def returned(self, recorder: RecordMaker, module: torch.nn.Module, output: Any) -> None:
        """Mark that a module returned, if it is an outermost one."""
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


class _Sharded(NamedTuple):
    """A parameter that is kept in shards."""

    tensor: weakref.ref[Any]
    """The `DTensor` with the shard of this process."""
    root: weakref.ref[torch.nn.Module]
    """The outermost module that was called."""
    owner: weakref.ref[torch.nn.Module]
    ranks: tuple[int, ...]
    """The ranks that have shards."""
    text: str
    """Its name and the ranks, as JSON."""
    dimension: int
    parts: int


class _ShardMarks:
    """Notes what modules compute with, for parameters that `fully_shard` keeps in shards and gathers before use."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], _Sharded] = {}
        """By the id of the module and the name of the parameter in it."""
        self._followed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._recorder: RecordMaker | None = None
        self._handle: Any = None

    def follow(self, recorder: RecordMaker, root: torch.nn.Module) -> None:
        """Follow the shards of an outermost module that is about to be called."""
        self._recorder = recorder
        if root in self._followed:
            return
        self._followed.add(root)
        for path, module in root.named_modules():
            for key, tensor in module._parameters.items():
                sharded = None if tensor is None else _sharded(root, module, f"{path}.{key}".lstrip("."), tensor)
                if sharded is not None:
                    self._known[id(module), key] = sharded
        _note_divided(recorder, root, [one for one in self._known.values() if one.root() is root])
        if self._known and self._handle is None:
            # It runs before the hook with which `fully_shard` frees what it gathered.
            self._handle = torch.nn.modules.module.register_module_forward_hook(self._computed)

    def close(self) -> None:
        """Stop following shards."""
        if self._handle is not None:
            self._handle.remove()

    def _computed(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        recorder = self._recorder
        if recorder is None or not recorder.is_active or get_ident() != recorder.thread:
            return
        for key, tensor in module._parameters.items():
            sharded = self._known.get((id(module), key))
            if sharded is not None and tensor is not None and sharded.owner() is module:
                recorder.run_unrecorded(_gathered, recorder, sharded, tensor)


def _sharded(root: torch.nn.Module, module: torch.nn.Module, name: str, tensor: Any) -> _Sharded | None:
    """Describe a parameter if it is a `DTensor` split along one dimension; else None."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not is_traceable_wrapper_subclass(tensor):
        return None
    cut = [(at, placement) for at, placement in enumerate(placements) if not placement.is_replicate()]
    if len(cut) != 1 or type(cut[0][1]).__name__ != "Shard":
        return None
    (at, placement), mesh = cut[0], getattr(tensor, "device_mesh")  # noqa: B009 (mypy knows the wrapper only)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    ranks = mesh.mesh[tuple(slice(None) if index == at else place for index, place in enumerate(coordinate))].tolist()
    text = json.dumps({"name": name, "ranks": ranks})
    return _Sharded(
        weakref.ref(tensor), weakref.ref(root), weakref.ref(module), tuple(ranks), text, placement.dim, len(ranks)
    )


def _note_divided(recorder: RecordMaker, root: torch.nn.Module, shards: list[_Sharded]) -> None:
    """Record which ranks hold parts of a model, if these are split along one dimension of a mesh.

    If `fully_shard` gathers the parts, ranks have separate batches; if ranks compute with parts, they share batches.
    """
    groups = {one.ranks for one in shards}
    # On a 2D mesh, parameters may be split along either or both dimensions: which batches belong together is unknown.
    if len(groups) == 1 and not recorder.is_waiting:
        # If this module is not loaded, `fully_shard` was not used.
        gathering = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        is_gathered = any(isinstance(part, gathering) for part in root.modules())
        text = json.dumps({"ranks": list(groups.pop()), "shared": not is_gathered})
        recorder.event(Role.OP, DIVIDED_OP, [], text=text)


def _gathered(recorder: RecordMaker, sharded: _Sharded, tensor: torch.Tensor) -> None:
    shard = sharded.tensor()
    if shard is None or tensor is shard or is_traceable_wrapper_subclass(tensor) or tensor.shape != shard.shape:
        return
    parts = torch.chunk(tensor.detach(), sharded.parts, dim=sharded.dimension)
    recorder.event(Role.OP, GATHERED_OP, [], text=sharded.text, given=[*plain_parts(shard), *parts])


class _FileMarks:
    """Notes what was saved to and loaded from files of tensors."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._opened: dict[int, str | None] = {}
        """By thread, the file that `torch.load` opened last."""

    def wrapped(self) -> list[Undo]:
        """Wrap `torch.save`, and what `torch.load` calls."""
        return [
            wrap(torch, "save", self._saving),
            wrap(serialization, "_open_file_like", self._opening),
            *(wrap(serialization, name, self._loading) for name in LOADERS if hasattr(serialization, name)),
        ]

    def _saving(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        recorder = self._threads.recorder()
        file = _path(args[1] if len(args) > 1 else kwargs.get("f"))
        if recorder is not None and file is not None:
            recorder.run_unrecorded(_note_file, recorder, SAVED_OP, file, args[0] if args else kwargs.get("obj"))
        return original(*args, **kwargs)

    def _opening(self, original: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
        self._opened[get_ident()] = _path(file)
        return original(file, *args, **kwargs)

    def _loading(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        recorder, file = self._threads.recorder(), self._opened.pop(get_ident(), None)
        # Reading a file that is only memory-mapped would be our own access, not the program's.
        if recorder is not None and file is not None and kwargs.get("overall_storage") is None:
            recorder.run_unrecorded(_note_file, recorder, LOADED_OP, file, loaded)
        return loaded


def _path(file: Any) -> str | None:
    """Return the path of a file that a program names or has opened; None if it has no name."""
    named = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.realpath(named) if isinstance(named, (str, os.PathLike)) else None


def _note_file(recorder: RecordMaker, name: str, file: str, content: Any) -> None:
    if recorder.is_waiting:
        return
    found = [(key, part) for key, tensor in loaded_tensors(content, set()) for part in plain_parts(tensor)]
    if found:
        text = json.dumps({"file": file, "names": [key for key, _ in found]})
        recorder.event(Role.OP, name, [], text=text, given=[part for _, part in found], phase=Phase.CHECKPOINT)


def watch_files(threads: Threads) -> list[Undo]:
    """Note what is saved to and loaded from files of tensors, from now on; returns functions that end this."""
    return _FileMarks(threads).wrapped()
