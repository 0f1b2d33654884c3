"""Backwards and optimizer steps: where losses are, and where steps end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.trace.schema import Meaning
from determinism.types import Phase, Role


def install(threads: Threads, stepped: Callable[[], None]) -> list[Undo]:
    """Hook backwards, optimizers and gradient scalers.

    Args:
        threads: Receive losses and what is held at the ends of steps.
        stepped: Called after an optimizer stepped or was skipped.

    Returns:
        What takes each hook off.
    """

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if (recorder := threads.recorder()) is not None:
            recorder.progress.optimizer_begins(optimizer)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if (recorder := threads.recorder()) is not None:
            recorder.held.add_optimizer(optimizer)
            recorder.quietly(recorder.progress.optimizer_ends, optimizer)
            stepped()

    handles = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
    return [*(handle.remove for handle in handles), _follow_backwards(threads), _follow_scaler(threads, stepped)]


def _follow_backwards(threads: Threads) -> Undo:
    def around(original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        if recorder is not None and kwargs.get("accumulate_grad") and torch._C._current_autograd_node() is None:
            recorder.quietly(_loss, recorder, outputs)
        try:
            return original(outputs, *args, **kwargs)
        finally:
            if recorder is not None and recorder.progress.phase is Phase.FORWARD:
                recorder.progress.phase = Phase.OTHER

    return wrap(torch.autograd, "_engine_run_backward", around)


def _loss(recorder: Recorder, outputs: Any) -> None:
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    record = recorder.event(Role.LOSS, "determinism::loss", tensors, values=True, phase=Phase.FORWARD)
    if tensors:
        value = _number(tensors[0])
        meaning = Meaning.UNKNOWN_LOSS if value is None else Meaning.LOSS
        edge = recorder.look(tensors[:1]).edges if recorder.tracks_ops else ()
        recorder.writer.number(meaning, record, edge, value or 0.0, recorder.progress.step)


def _number(loss: torch.Tensor) -> float | None:
    """What a loss on the CPU holds; one elsewhere is not waited for."""
    # What wraps a tensor, such as a DTensor, might ask other processes for it.
    if (
        type(loss) is not torch.Tensor
        or not is_plain(loss)
        or not loss.is_cpu
        or loss.numel() != 1
        or not loss.is_floating_point()
    ):
        return None
    try:
        # Modes of the program do not see it.
        with torch._C._DisableTorchDispatch():
            return float(loss.detach().item())
    except RuntimeError:
        # Within a transformation, such as `vmap`, there is no single value.
        return None


def _follow_scaler(threads: Threads, stepped: Callable[[], None]) -> Undo:
    def around(original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        before = recorder.progress.optimizer_calls if recorder is not None else 0
        result = original(scaler, optimizer, *args, **kwargs)
        if recorder is not None and recorder.progress.optimizer_calls == before:
            recorder.quietly(recorder.progress.optimizer_skipped, optimizer)
            stepped()
        return result

    return wrap(torch.amp.GradScaler, "step", around)
