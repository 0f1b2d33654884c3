"""Every batch that a `DataLoader` yields, recorded at the yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from determinism.digest import digest_bytes, digest_text
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.torch.wrapping import Undo, wrap
from determinism.types import Phase, Role


def install(recorder: Recorder, batch_yielded: Callable[[], None]) -> Undo:
    """Wrap the iterators of data loaders; returns what takes the wrapper off."""

    def around(original: Callable[[Any], Any], iterator: Any) -> Any:
        with recorder.in_phase(Phase.DATA):
            batch = original(iterator)
            recorder.quietly(_record_batch, recorder, batch)
        batch_yielded()
        return batch

    return wrap(_BaseDataLoaderIter, "__next__", around)


def _record_batch(recorder: Recorder, batch: Any) -> None:
    found = list(leaves(batch))
    tensors = [leaf for leaf in found if isinstance(leaf, torch.Tensor) and is_plain(leaf)]
    others = [leaf for leaf in found if not isinstance(leaf, torch.Tensor)]
    record = recorder.event(
        Role.BATCH,
        "determinism::batch",
        tensors,
        values=True,
        plain_values=[b"".join(_plain_digest(value) for value in others)] if others else [],
    )
    storages = recorder.edges.storages
    for position, tensor in enumerate(tensors):
        state = storages.state(tensor)
        if tensor.nbytes == state.size:
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
