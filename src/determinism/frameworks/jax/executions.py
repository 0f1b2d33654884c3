"""Lets a recorder see every execution of a compiled program."""

from __future__ import annotations

from typing import Any

from jax._src import pjit
from jax._src.interpreters import pxla

from determinism.frameworks.jax.recorder import Recorder
from determinism.frameworks.wrapping import Undo, wrap


def install(recorder: Recorder) -> list[Undo]:
    """Hand each execution to a recorder; returns what takes each wrapper off.

    JAX keeps a way through C++ for a function that was called before, on which no execution is seen. While a recorder is there no
    such way is made; the functions then run the same programs, some tens of microseconds later.

    Raises:
        AttributeError: This version of JAX has none of these places.
    """

    def no_shorter_way(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    # Of functions that were called before, such as in the time before a recording within a program.
    type(pjit._cpp_pjit_cache_fun_only).clear_all()
    return [
        wrap(pjit, "_get_fastpath_data", no_shorter_way),
        wrap(pxla.MeshExecutable, "create_cpp_call", no_shorter_way),
        wrap(pxla.ExecuteReplicated, "__call__", recorder.execute),
    ]
