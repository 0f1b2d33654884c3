"""Keeps elements of the tensors that records give, so that runs on other machines can be compared by how far they are apart."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.trace.kept_values import sampled_places
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST

_MOST_KNOWN = 4096
_data_pointer = torch._C.TensorBase.data_ptr


class KeptValues:
    """Takes the same elements of each tensor of one size."""

    def __init__(self, most: int) -> None:
        """Make one.

        Args:
            most: How many elements of a tensor are kept at most.
        """
        self._most = most
        self._places: dict[tuple[int, torch.device], torch.Tensor] = {}

    def add(self, writer: ProcessWriter, record: int, tensors: Sequence[torch.Tensor], outputs: Sequence[Any]) -> None:
        """Keep elements of what a record gave.

        Args:
            writer: Of the record.
            record: Its number.
            tensors: What it gave.
            outputs: Layout and digest of each; one without a digest holds bytes that mean nothing.
        """
        for output, (tensor, digest) in enumerate(zip(tensors, outputs[1::2], strict=False)):
            if digest == NO_DIGEST or not is_plain(tensor) or not tensor.numel() or tensor.is_quantized:
                continue
            try:
                writer.values(record, output, self._elements(tensor.detach()))
            except (RuntimeError, TypeError) as error:
                writer.blind_spot(
                    "values-not-kept", f"values of {tensor.dtype}", f"{type(error).__name__}: {error}"[:300]
                )

    def _elements(self, tensor: torch.Tensor) -> bytes:
        tensor = tensor.resolve_conj().resolve_neg()
        kept = torch.take(tensor, self._places_in(tensor)) if tensor.numel() > self._most else tensor.contiguous()
        kept = kept.cpu()
        return ctypes.string_at(_data_pointer(kept), kept.nbytes)

    def _places_in(self, tensor: torch.Tensor) -> Any:
        key = (tensor.numel(), tensor.device)
        if key not in self._places:
            if len(self._places) >= _MOST_KNOWN:
                self._places.clear()
            self._places[key] = torch.tensor(sampled_places(tensor.numel(), self._most), device=tensor.device)
        return self._places[key]
