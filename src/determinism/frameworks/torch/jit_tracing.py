"""Steps aside while `torch.jit.trace` runs the program.

PyTorch's tracer does not work under any dispatch mode, not even an empty one: what is handed to a mode has lost the places of
numbers in the graph. It also writes the whole stack of Python frames into the graph, and into files that are saved from it.
So while it runs, the recorder is off the stack of modes, our wrappers are off, and no frame of ours is below it. What the
program computes meanwhile is not recorded; what it changed in memory is digested where it is read next.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from determinism.frameworks.torch.recorder import Threads
from determinism.frameworks.wrapping import Replaced, Undo

_FUNCTIONS = ("_create_graph_by_tracing", "_create_function_from_trace", "_create_function_from_trace_with_dict")
_METHODS = ("_create_method_from_trace", "_create_method_from_trace_with_dict")
"""All ways into the tracer: `torch.jit.trace`, `trace_module`, the old ONNX exporter and TensorBoard's graphs take one."""
_WHAT = "function that torch.jit traced"
_REASON = "the ops that ran during tracing are not recorded; memory that they changed is digested where it is read next"
_num_modes = torch._C._len_torch_dispatch_stack
_mode_at = torch._C._get_dispatch_stack_at


class _Call(functools.partial[Any]):
    """One call of the tracer. Being called in C, it adds no frame; it is over when the caller lets go of it."""

    meanwhile: ExitStack | None = None

    def __del__(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile.close()


class _Entry:
    """Stands in the place of one way into the tracer."""

    def __init__(self, original: Any, aside: _Aside) -> None:
        self._original = original
        self._aside = aside
        functools.update_wrapper(self, original)  # type: ignore[arg-type]

    def call(self, *bound: Any) -> _Call:
        """Begin a call, with what a method is bound to."""
        made = _Call(self._original, *bound)
        made.meanwhile = self._aside.step_aside()
        return made


class _EntryFunction(_Entry):
    """A function: Python gets its `__call__`, and calls what it gets."""

    @property
    def __call__(self) -> Any:  # type: ignore[override]
        return self.call()


class _EntryMethod(_Entry):
    """A method: Python gets it from the instance, and calls what it gets."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._original if instance is None else self.call(instance)


class _Aside:
    """Takes the recorder of a thread out of the way."""

    def __init__(self, threads: Threads, wrappers: list[Replaced]) -> None:
        self._threads = threads
        self._wrappers = wrappers

    def step_aside(self) -> ExitStack | None:
        """What puts everything back; None if this thread is not recorded now."""
        recorder = self._threads.recorder()
        if recorder is None:
            return None
        meanwhile = ExitStack()
        if recorder.tracks_ops:
            storages, digest = recorder.edges.storages, recorder.stream.digests.of
            held = recorder.run_unrecorded(storages.contents, digest)
            meanwhile.callback(recorder.run_unrecorded, storages.forget_changed, held, digest)
            recorder.writer.blind_spot("traced", _WHAT, _REASON)
        meanwhile.enter_context(recorder.suspended())
        if self._threads.is_alone():
            # Other threads would miss them.
            for wrapper in self._wrappers:
                if wrapper.take_off():
                    meanwhile.callback(wrapper.put_back)
        if (count := _num_modes()) and _mode_at(count - 1) is recorder:
            meanwhile.callback(_push_mode, _pop_mode())
        return meanwhile


def install(threads: Threads, undos: Iterable[Undo]) -> list[Undo]:
    """Step aside whenever the tracer runs, from now on.

    Args:
        threads: Whose recorders step aside.
        undos: What was installed; wrappers among it are off meanwhile.

    Returns:
        What ends that.
    """
    aside = _Aside(threads, [undo for undo in undos if isinstance(undo, Replaced)])
    module = torch._C.ScriptModule
    return [
        *(
            Replaced(torch._C, name, _EntryFunction(getattr(torch._C, name), aside))
            for name in _found(torch._C, _FUNCTIONS)
        ),
        *(Replaced(module, name, _EntryMethod(getattr(module, name), aside)) for name in _found(module, _METHODS)),
    ]


def _found(owner: Any, names: Iterable[str]) -> list[str]:
    return [name for name in names if hasattr(owner, name)]
