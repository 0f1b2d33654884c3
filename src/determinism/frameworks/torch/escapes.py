"""Where tensor values leave the framework without an op: conversion, printing, pickling, shared memory.

The methods of `torch.Tensor` are wrapped; the wrappers record and then do what the method does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from determinism.frameworks.torch import saved_state
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.types import Phase, Role

_BY_VALUE = ("tolist",)
"""The value itself is handed over."""

_BY_MEMORY = ("numpy", "__array__", "__dlpack__", "data_ptr")
"""The memory is handed over: others may read it, and write it, from now on."""


def install(threads: Threads, note_racy: Callable[[str], None]) -> list[Undo]:
    """Wrap the ways out of the framework.

    Args:
        threads: Whose recorders are told.
        note_racy: Told what may go otherwise in the next run.

    Returns:
        What takes each wrapper off.
    """
    return [
        *(wrap(torch.Tensor, name, _recording(threads, _value_escapes, name)) for name in _BY_VALUE),
        *(wrap(torch.Tensor, name, _recording(threads, _memory_escapes, name)) for name in _BY_MEMORY),
        wrap(torch.Tensor, "__reduce_ex__", _recording(threads, _pickled)),
        wrap(_tensor_str, "_str", _recording(threads, _value_escapes, "print")),
        wrap(torch.Tensor, "share_memory_", _recording(threads, _shared, note_racy)),
        wrap(torch, "save", _saving(threads)),
        wrap(saved_state, "to_array", _keeping(threads)),
    ]


def _shared(recorder: Recorder, note_racy: Callable[[str], None], tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor) and is_plain(tensor):
        _memory_escapes(recorder, "share_memory", tensor)
        recorder.edges.storages.share(tensor)
        note_racy("shared memory")


def _value_escapes(recorder: Recorder, name: str, tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        recorder.event(Role.ESCAPE, f"determinism::{name}", [tensor], values=True)


def _memory_escapes(recorder: Recorder, name: str, tensor: Any) -> None:
    # The kernels of a compiled graph get addresses; what they read and write is in the record of the graph.
    if isinstance(tensor, torch.Tensor) and is_plain(tensor) and not recorder.graph_depth:
        recorder.event(Role.ESCAPE, f"determinism::{name.strip('_')}", [tensor])
        recorder.edges.storages.state(tensor).is_foreign = True


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
            recorder.quietly(record, recorder, *given, tensor)
        return original(tensor, *args, **kwargs)

    return around


def _saving(threads: Threads) -> Callable[..., Any]:
    """Record what is saved as the call begins; in a thread beside the main one as it ends too.

    There the program trains on meanwhile, and may change what is being written: what is on disk is then of no one moment.
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
                recorder.quietly(_saved, recorder, recorder.saving)
            return result
        finally:
            recorder.saving = None

    return around


def _announce(file: Any) -> None:
    """Say by an audit event that a file is about to be written: PyTorch opens it in C++, where Python does not see it."""
    if isinstance(file, (str, os.PathLike)):
        sys.audit("determinism.write", file)


def _saved(recorder: Recorder, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        recorder.event(Role.CHECKPOINT, "determinism::saved", [tensor], values=True, phase=Phase.CHECKPOINT)


def _keeping(threads: Threads) -> Callable[..., Any]:
    """What `determinism.state` captures is saved, like what `torch.save` saves."""

    def around(original: Callable[[Any], Any], thing: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(thing)
        if isinstance(thing, torch.Tensor):
            recorder.quietly(_kept, recorder, thing)
        with recorder.suspended():
            return original(thing)

    return around


def _kept(recorder: Recorder, tensor: torch.Tensor) -> None:
    recorder.event(Role.CHECKPOINT, "determinism::save", [tensor], values=True, phase=Phase.CHECKPOINT)
