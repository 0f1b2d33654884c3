"""Choices of a training loop by which it gives up an order or a state. Fixed, it keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

CHECKPOINT = "checkpoint-rng"
LOADER = "loader-order"


def _choosing(name: str) -> Callable[[Use, Function, tuple[Any, ...], dict[str, Any]], Any]:
    """A function for which an argument, given as False, gives something up."""

    def called(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if keywords.get(name, True):
            return function(*arguments, **keywords)
        if use.is_fixed:
            keywords = {**keywords, name: True}
        else:
            use.note(lambda: None)
        return function(*arguments, **keywords)

    return called


FUNCTIONS = (
    *functions(
        CHECKPOINT, _choosing("preserve_rng_state"), "torch.utils.checkpoint", "checkpoint checkpoint_sequential"
    ),
    *functions(LOADER, _choosing("in_order"), "torch.utils.data.dataloader", "DataLoader DataLoader.__init__"),
)
