"""Runs an op that runs ops itself with autocast and lazy conjugation as they are without a mode.

PyTorch switches both off below the handler of a mode. Whatever an op's kernel hands to the dispatcher then misses
them: `bilinear` under autocast gives another dtype, `linalg.pinv` of a complex matrix wrong numbers.

In inference mode composite ops arrive whole, such as `linear`, and below the handler the views that they make no longer know
that their base requires a gradient. `matmul` asks for that, and multiplies in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.formulas import formulas_of
from determinism.trace.writer import ProcessWriter

_C: Any = torch._C
_NAMES = [name for name in dir(getattr(_C, "DispatchKey", object)) if not name.startswith("_")]
CONJUGATION = tuple(getattr(_C.DispatchKey, name) for name in ("Conjugate", "Negative", "ZeroTensor") if name in _NAMES)
AUTOCAST = tuple(getattr(_C.DispatchKey, name) for name in _NAMES if name.startswith("Autocast"))
VIEWS = tuple(getattr(_C.DispatchKey, name) for name in ("ADInplaceOrView",) if name in _NAMES)
_CAN_RESTORE = hasattr(_C, "_RestorePythonTLSSnapshot") and hasattr(_C, "_ForceDispatchKeyGuard")

_WRAPPED_ELSEWHERE = {"aten::linalg_pinv"}
"""They also run inside an op that autocast wraps as a whole (`pinverse`), where it is off without a mode, too. A handler
cannot tell the one from the other."""


def run_with_settings(writer: ProcessWriter, op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op from within a handler, so that the ops in its kernel find what they would find without the mode.

    Args:
        writer: Learns of what cannot be restored.
        op: One that the audit found.
        args: Its positional arguments.
        kwargs: Its other arguments.
    """
    try:
        keys = _missing_keys(writer, op._schema.name, args)
    except Exception as error:
        writer.blind_spot("handler-failed", op.name(), f"{type(error).__name__}: {error}"[:300])
        keys = ()
    if torch.is_inference_mode_enabled():
        keys += VIEWS
    return run_restoring(keys, op, args, kwargs)


def runner_of(op: Any) -> Callable[..., Any]:
    """What runs an op from within a handler, where its kernel is the same with a mode and without.

    Args:
        op: An `OpOverload`, or a higher-order operator.
    """
    if type(op) is not torch._ops.OpOverload:
        run: Callable[..., Any] = op
        return run
    # All that calling an `OpOverload` does is to call this.
    kernel: Callable[..., Any] = op._op
    if not _C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return kernel

    def run_composite(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return run_restoring(VIEWS, kernel, args, kwargs)
        return kernel(*args, **kwargs)

    return run_composite


def _missing_keys(writer: ProcessWriter, name: str, args: Any) -> tuple[Any, ...]:
    # What autocast does is another thing on each device; the audit saw the CPU.
    if name not in formulas_of(torch.__version__).autocast_inside or not args[0].is_cpu:
        return CONJUGATION
    if name not in _WRAPPED_ELSEWHERE:
        return CONJUGATION + AUTOCAST
    if _is_on_outside("AutocastCPU"):
        writer.blind_spot("formula-changed", f"{name} under autocast", "the ops inside it run without autocast")
    return CONJUGATION


def run_restoring(keys: tuple[Any, ...], op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op from within a handler with some dispatch keys as they were when the program called.

    Args:
        keys: The dispatch keys.
        op: What to run.
        args: Its positional arguments.
        kwargs: Its other arguments.
    """
    if not _CAN_RESTORE or not keys:
        return op(*args, **kwargs)
    excluded_outside, excluded = _excluded_outside(), _C._dispatch_tls_local_exclude_set()
    for key in keys:
        if not excluded_outside.has(key):
            excluded = excluded.remove(key)
    with _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded):
        return op(*args, **kwargs)


def _excluded_outside() -> Any:
    with _C._RestorePythonTLSSnapshot():
        return _C._dispatch_tls_local_exclude_set()


def _is_on_outside(key: str) -> bool:
    return _CAN_RESTORE and not _excluded_outside().has(getattr(_C.DispatchKey, key))
