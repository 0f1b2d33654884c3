"""What `torch.load` gave: whole tensors, of which the program may read parts only, so that their digests are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import serialization

from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.trace.schema import LOAD_OP
from determinism.types import Phase, Role

_READERS = ("_load", "_legacy_load")
"""What `torch.load` calls for the two formats of files. A frame of ours around itself would show in its warnings."""


def install(threads: Threads) -> list[Undo]:
    """Watch `torch.load`; what it gives takes no part in what differs, and only says where that came from.

    Args:
        threads: Whose recorders are told.

    Returns:
        What takes each wrapper off.
    """

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        recorder = threads.recorder()
        # To read a file that is only mapped would be our reading, not the program's.
        if recorder is not None and recorder.tracks_ops and kwargs.get("overall_storage") is None:
            recorder.quietly(_record, recorder, loaded)
        return loaded

    return [wrap(serialization, name, around) for name in _READERS if hasattr(serialization, name)]


def _record(recorder: Recorder, loaded: Any) -> None:
    tensors = list(_tensors(loaded, set()))
    if tensors:
        recorder.event(Role.OP, LOAD_OP, [], given=tensors, phase=Phase.CHECKPOINT)


def _tensors(loaded: Any, passed: set[int]) -> Iterator[torch.Tensor]:
    """Those in nested lists, tuples and mappings, and in modules; a whole pickled program may hold itself."""
    if id(loaded) in passed:
        return
    if isinstance(loaded, torch.Tensor):
        if not loaded.is_meta:
            yield loaded
        return
    inner: Iterable[Any] = ()
    if isinstance(loaded, torch.nn.Module):
        inner = (*loaded.parameters(), *loaded.buffers())
    elif isinstance(loaded, Mapping):
        inner = loaded.values()
    elif isinstance(loaded, (list, tuple)):
        inner = loaded
    passed.add(id(loaded))
    for one in inner:
        yield from _tensors(one, passed)
