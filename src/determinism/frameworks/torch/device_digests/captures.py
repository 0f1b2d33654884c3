"""Keeps away from a device while a CUDA graph is captured: any question to it would end the capture with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.device_digests.record_digests import DeviceDigests
from determinism.frameworks.torch.threads import Threads
from determinism.frameworks.wrapping import Undo, wrap


def watch_captures(threads: Threads, devices: Callable[[], DeviceDigests]) -> list[Undo]:
    """Wait for all digests before a capture begins, and ask for none until it has ended; returns what ends that."""

    def beginning(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        if (recorder := threads.recorder()) is not None:
            recorder.quietly(devices().settle)
        result = original(graph, *args, **kwargs)
        devices().num_captures += 1
        return result

    def ending(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(graph, *args, **kwargs)
        finally:
            devices().num_captures = max(0, devices().num_captures - 1)

    return [
        wrap(torch.cuda.CUDAGraph, "capture_begin", beginning),
        wrap(torch.cuda.CUDAGraph, "capture_end", ending),
    ]
