"""What may look closely at the ops that a recorder records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from determinism.frameworks.torch.op_traits import OpTraits

if TYPE_CHECKING:
    from determinism.frameworks.torch.record_maker import RecordMaker


class Look(Protocol):
    """Looks closely at what a recorder records."""

    def __call__(self, recorder: RecordMaker, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """An op is about to run."""

    def after(self, recorder: RecordMaker, traits: OpTraits, record: int, written: list[torch.Tensor]) -> None:
        """It has run, and was recorded under a number."""

    def event(self, recorder: RecordMaker, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Something else than an op is about to be recorded."""
