"""The fix for an op that varies and that `determinism.patch` replaces."""

from __future__ import annotations

from determinism.comparison.findings import Cause, Fix
from determinism.comparison.result import Divergence
from determinism.knowledge.index import op_at
from determinism.knowledge.search import entries_for

_CAUSE = "nondeterministic-op"
_TITLE = "Replace the op by a deterministic one, and start the program with"


def patch_fixes(divergence: Divergence | None, causes: list[Cause], fixes: list[Fix]) -> list[Fix]:
    """To run the program with patches, if the op is thought to vary, there is one for it, and nothing else was shown to help.

    Args:
        divergence: The first one.
        causes: What was found to cause it.
        fixes: What is already known to do.
    """
    if divergence is None or divergence.op is None or _CAUSE not in [one.identifier for one in causes]:
        return []
    if any(one.identifier == _CAUSE and one.verified for one in fixes):
        return []
    if not any(op_at(entry).patches for name in _names(divergence.op) for entry in entries_for(name, "torch")):
        return []
    return [Fix(_CAUSE, _TITLE, "determinism run --patch -- COMMAND")]


def _names(op: str) -> list[str]:
    """An overload of ATen, and the op that it is the backward of."""
    name = op.partition("::")[2].partition(".")[0].removesuffix("_backward").removesuffix("_forward")
    return [op, f"aten::{name}", f"aten::{name.removeprefix('_')}"]
