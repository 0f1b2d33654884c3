"""Every batch that a `DataLoader` yields, recorded at the yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from determinism.digest import digest_bytes, digest_text
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.types import Phase, Role


def install(threads: Threads, batch_yielded: Callable[[Any], None]) -> list[Undo]:
    """Wrap the iterators of data loaders; returns what takes each wrapper off."""

    def around(original: Callable[[Any], Any], iterator: Any) -> Any:
        if (recorder := threads.recorder()) is None:
            return original(iterator)
        with recorder.progress.in_phase(Phase.DATA):
            batch = original(iterator)
            recorder.quietly(record_contents, recorder, "determinism::batch", batch)
        if recorder is threads.main:
            batch_yielded(iterator)
        return batch

    def receiving(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What the workers send arrives in an order that varies; it is recorded when it is yielded.
        if (recorder := threads.recorder()) is None:
            return original(*args, **kwargs)
        with recorder.suspended():
            return original(*args, **kwargs)

    return [
        wrap(_BaseDataLoaderIter, "__next__", around),
        wrap(_MultiProcessingDataLoaderIter, "_try_get_data", receiving),
    ]


def record_contents(recorder: Recorder, name: str, value: Any) -> None:
    """Record that nested values arrived from outside: the digests of all tensors and other values in them.

    Args:
        recorder: That of the thread that got them.
        name: How they came.
        value: The values; their tensors are from now on known as outputs of this record.
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
    storages = recorder.edges.storages
    for position, tensor in enumerate(tensors):
        state, layout = storages.look(tensor)
        if layout.fills_storage:
            state.record, state.output = record, position


def leaves(value: Any) -> Iterator[Any]:
    """Everything in nested lists, tuples, mappings and plain objects, in order."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, type)):
        yield from leaves(vars(value))
    else:
        yield value


def _plain_digest(value: Any) -> bytes:
    """Digest of a value of a batch that is no tensor; objects without a value of their own count by their type."""
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return digest_text(repr(value))
    interface = getattr(value, "tobytes", None)
    if interface is not None:
        return digest_bytes(interface())
    return digest_text(type(value).__qualname__)
