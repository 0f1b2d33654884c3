"""Where tensor values leave the framework without an op: conversion, printing, pickling, shared memory.

The methods of `torch.Tensor` are wrapped; the wrappers record and then do what the method does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.types import Phase, Role

_BY_VALUE = ("tolist",)
"""The value itself is handed over."""

_BY_MEMORY = ("numpy", "__array__", "__dlpack__", "data_ptr", "share_memory_")
"""The memory is handed over: others may read it, and write it, from now on."""

Undo = Callable[[], None]


def install(recorder: Recorder) -> list[Undo]:
    """Wrap the ways out of the framework; returns what takes each wrapper off."""
    undo = [_wrap(torch.Tensor, name, functools.partial(_value_escapes, recorder, name)) for name in _BY_VALUE]
    undo += [_wrap(torch.Tensor, name, functools.partial(_memory_escapes, recorder, name)) for name in _BY_MEMORY]
    undo.append(_wrap(torch.Tensor, "__reduce_ex__", functools.partial(_pickled, recorder)))
    undo.append(_wrap(_tensor_str, "_str", functools.partial(_value_escapes, recorder, "print")))
    undo.append(_wrap_save(recorder))
    return undo


def _value_escapes(recorder: Recorder, name: str, tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        recorder.event(Role.ESCAPE, f"determinism::{name}", [tensor], values=True)


def _memory_escapes(recorder: Recorder, name: str, tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor) and is_plain(tensor):
        recorder.event(Role.ESCAPE, f"determinism::{name.strip('_')}", [tensor])
        recorder.edges.storages.state(tensor).is_foreign = True


def _pickled(recorder: Recorder, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        return
    if recorder.is_saving:
        recorder.event(Role.CHECKPOINT, "determinism::save", [tensor], values=True, phase=Phase.CHECKPOINT)
    else:
        recorder.event(Role.ESCAPE, "determinism::pickle", [tensor], values=True)


def _wrap(owner: Any, name: str, record: Callable[[Any], None]) -> Undo:
    original = getattr(owner, name)
    own = vars(owner).get(name)

    @functools.wraps(original)
    def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = record.args[0]  # type: ignore[attr-defined]
        recorder.quietly(record, tensor)
        return original(tensor, *args, **kwargs)

    setattr(owner, name, wrapper)

    def undo() -> None:
        if vars(owner).get(name) is wrapper:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    return undo


def _wrap_save(recorder: Recorder) -> Undo:
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        recorder.is_saving += 1
        try:
            return original(*args, **kwargs)
        finally:
            recorder.is_saving -= 1

    torch.save = save

    def undo() -> None:
        if torch.save is save:
            torch.save = original

    return undo
