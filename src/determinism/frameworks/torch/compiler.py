"""Keeps `torch.compile` from looking into the recorder.

PyTorch wraps the handler of every mode so that Dynamo leaves its frames alone. The wrapper imports Dynamo, which takes a
second, into programs that never compile, and costs a quarter of an empty handler per op. Marking the code object says
the same to Dynamo's frame evaluation for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def leave_alone(function: Callable[..., Any], *, with_callees: bool = True) -> bool:
    """Tell Dynamo to run a function as it is; False if this version of PyTorch cannot.

    Args:
        function: A Python function.
        with_callees: Also whatever it calls; otherwise Dynamo may compile that.
    """
    evaluation = getattr(torch._C._dynamo, "eval_frame", None)
    try:
        action = evaluation._FrameAction  # type: ignore[union-attr]
        callees = action.SKIP if with_callees else action.DEFAULT
        strategy = evaluation._FrameExecStrategy(action.SKIP, callees)  # type: ignore[union-attr]
        evaluation.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
    except AttributeError:
        return False
    return True


def unwrap_handler(mode: type[Any]) -> None:
    """Take PyTorch's wrapper off the handler of a mode, where its code can be marked instead."""
    plain = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    if plain is not None and leave_alone(plain):
        mode.__torch_dispatch__ = plain
