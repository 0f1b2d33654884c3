"""The alerts that `torch.compile` raises by itself while it traces: a few of PyTorch's Python formulas repeat those of the kernels.

Tracing calls no kernel, so replacing kernels leaves them. They are told apart by the words that they are raised with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._prims_common as formulas

from determinism.frameworks.torch.patches.alerts import ALERTS

SILENT = frozenset(ALERTS.values())
"""What replaced ops are called in alerts. Traced, their kernels run; but `max_unpool` becomes an `index_put`, which is deterministic in
deterministic mode."""


def silence() -> Callable[[], None]:
    """Let tracing go on where it meets an op that is replaced. Gives what puts the alerts back."""
    stock = getattr(formulas, "alert_not_deterministic", None)
    if stock is None or hasattr(stock, "__wrapped__"):
        return lambda: None

    def alert_not_deterministic(caller: str, *given: Any, **named: Any) -> None:
        if caller not in SILENT:
            stock(caller, *given, **named)

    alert_not_deterministic.__wrapped__ = stock  # type: ignore[attr-defined]
    formulas.alert_not_deterministic = alert_not_deterministic

    def restore() -> None:
        formulas.alert_not_deterministic = stock

    return restore
