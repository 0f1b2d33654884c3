"""Whether `determinism.patch` has a replacement for an op, so that it is worth a run."""

from __future__ import annotations

from determinism.knowledge.index import op_at
from determinism.knowledge.search import entries_for

_TENSORFLOW = "tf::"


def may_be_patched(op: str) -> bool:
    """Whether an op is replaced by `determinism.patch`, by all that is known of PyTorch; TensorFlow itself has to be asked.

    Args:
        op: Its name as records have it.
    """
    if op.startswith(_TENSORFLOW):
        return True
    return any(op_at(entry).patches for name in _names(op) for entry in entries_for(name, "torch"))


def _names(op: str) -> list[str]:
    """An overload of ATen, and the op that it is the backward of."""
    name = op.partition("::")[2].partition(".")[0].removesuffix("_backward").removesuffix("_forward")
    return [op, f"aten::{name}", f"aten::{name.removeprefix('_')}"]
