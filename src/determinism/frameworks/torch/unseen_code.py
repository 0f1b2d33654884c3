"""Code that works on tensors where no dispatch mode sees it: replayed CUDA graphs, and extensions written in C or C++."""

from __future__ import annotations

import mmap
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import torch

from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap

_MOST_BYTES = 64 << 20
"""Larger files are not looked into: reading them would take longer than the program may wait at its end."""
_WITHOUT_TORCH = frozenset({"numpy", "scipy", "pandas", "pyarrow", "sklearn", "xxhash", "PIL", "matplotlib"})
"""Packages with many extensions, none of which is linked with PyTorch."""
_LIBRARY = b"libtorch_python"
"""What an extension that takes tensors as Python objects is linked with."""


EXTENSION_REASON = "what its functions do to the memory of tensors is not recorded; ops that it calls are"


def watch_replays(threads: Threads) -> Undo:
    """Count every replay of a CUDA graph as a blind spot; returns what ends that."""

    def around(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is not None:
            recorder.writer.blind_spot(
                "cuda-graph",
                "replay of a CUDA graph",
                "its kernels run without ops; what they write is digested where an op reads memory that no record wrote",
            )
        return original(graph, *args, **kwargs)

    return wrap(torch.cuda.CUDAGraph, "replay", around)


def extensions() -> Iterator[str]:
    """Names of the loaded extension modules, not PyTorch's own, that are linked with PyTorch.

    An op that an extension registered with the dispatcher is seen like any other; what its functions do to memory
    directly is not.
    """
    skipped = (os.path.dirname(torch.__file__) + os.sep, sysconfig.get_path("stdlib") + os.sep + "lib-dynload")
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(tuple(EXTENSION_SUFFIXES)) or path.startswith(skipped):
            continue
        if name.partition(".")[0] not in _WITHOUT_TORCH and _mentions_library(path):
            yield name


def _mentions_library(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            if not 0 < os.fstat(file.fileno()).st_size <= _MOST_BYTES:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(_LIBRARY) >= 0
    except OSError:
        return False
