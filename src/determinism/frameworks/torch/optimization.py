"""Backwards and optimizer steps: where losses are, and where steps end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.wrapping import Undo, wrap
from determinism.types import Phase, Role


def install(recorder: Recorder, stepped: Callable[[], None]) -> list[Undo]:
    """Hook backwards, optimizers and gradient scalers.

    Args:
        recorder: Receives losses and what is held at the ends of steps.
        stepped: Called after an optimizer stepped or was skipped.

    Returns:
        What takes each hook off.
    """
    progress = recorder.progress

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        progress.optimizer_begins(optimizer)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder.held.add_optimizer(optimizer)
        recorder.quietly(progress.optimizer_ends, optimizer)
        stepped()

    handles = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
    return [*(handle.remove for handle in handles), _follow_backwards(recorder), _follow_scaler(recorder, stepped)]


def _follow_backwards(recorder: Recorder) -> Undo:
    def around(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad") and torch._C._current_autograd_node() is None:
            recorder.quietly(_loss, recorder, outputs)
        try:
            return original(outputs, *args, **kwargs)
        finally:
            if recorder.progress.phase is Phase.FORWARD:
                recorder.progress.phase = Phase.OTHER

    return wrap(torch.autograd, "_engine_run_backward", around)


def _loss(recorder: Recorder, outputs: Any) -> None:
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    recorder.event(Role.LOSS, "determinism::loss", tensors, values=True, phase=Phase.FORWARD)


def _follow_scaler(recorder: Recorder, stepped: Callable[[], None]) -> Undo:
    progress = recorder.progress

    def around(original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = progress.optimizer_calls
        result = original(scaler, optimizer, *args, **kwargs)
        if progress.optimizer_calls == before:
            recorder.quietly(progress.optimizer_skipped, optimizer)
            stepped()
        return result

    return wrap(torch.amp.GradScaler, "step", around)
