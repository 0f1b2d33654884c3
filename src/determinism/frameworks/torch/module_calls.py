"""Follows every call of a module, in every thread that is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from determinism.frameworks.torch.compiler import leave_alone
from determinism.frameworks.torch.data_loading import leaves
from determinism.frameworks.torch.modules import ModulePaths
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, replace
from determinism.types import Phase, Role

_frame = sys._getframe
Returned = Callable[[Recorder, torch.nn.Module, Any, Any], None]
Entered = Callable[[Recorder, torch.nn.Module, Any], None]


def install(threads: Threads, returned: Returned | None, entered: Entered | None = None) -> Undo:
    """Wrap `Module.__call__`.

    Global hooks would do the same, but they take Dynamo off its usual way, make it warn on the program's error stream,
    and cost more.

    Args:
        threads: Whose paths of modules are kept up to date.
        returned: Called with recorder, module, arguments and output when a module returns, before it is left.
        entered: Called with recorder, module and arguments before an outermost module is called.

    Returns:
        What takes the wrapper off.
    """

    def wrapper_of(original: Callable[..., Any]) -> Callable[..., Any]:
        # PyTorch's profiler looks for the module in the local variable of this name, and crashes where there is none.
        def call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            recorder = threads.main
            if not recorder.is_active or get_ident() != recorder.thread:
                other = threads.recorder()
                if other is None:
                    return original(self, *args, **kwargs)
                recorder = other
            paths = recorder.modules
            if not paths.calls:
                recorder.progress.phase = Phase.FORWARD
                if entered is not None:
                    entered(recorder, self, (args, kwargs))
            paths.enter(self, _frame())
            try:
                output = original(self, *args, **kwargs)
                if returned is not None:
                    returned(recorder, self, (args, kwargs), output)
                return output
            finally:
                paths.leave(self)

        return call

    undo = replace(torch.nn.Module, "__call__", wrapper_of)
    leave_alone(torch.nn.Module.__call__, with_callees=False)
    for own in (ModulePaths.enter, ModulePaths.leave, Threads.recorder, returned, entered):
        if own is not None:
            leave_alone(getattr(own, "__func__", own))
    return undo


def record_call(recorder: Recorder, module: torch.nn.Module, inputs: Any, output: Any) -> None:
    """Record that a module was called, at the level that records no ops."""
    given, made = ([v for v in leaves(values) if isinstance(v, torch.Tensor)] for values in (inputs, output))
    name = f"module::{type(module).__name__}"
    recorder.quietly(recorder.event, Role.MODULE, name, made, given=given, values=True)
