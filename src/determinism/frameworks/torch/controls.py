"""PyTorch's settings that `determinism.enable` reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from determinism.settings.control import Control


def has_begun(moment: str) -> bool:
    """Whether it is too late for settings that must come before a moment.

    Args:
        moment: "device" (CUDA is initialised) or "collectives" (a process group was made).
    """
    if moment == "device":
        return torch.cuda.is_initialized()
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _attribute(path: str) -> Control:
    """An attribute of a module within `torch`."""
    parent, _, name = path.rpartition(".")

    def owner() -> Any:
        return attrgetter(parent)(torch)

    return Control(lambda: getattr(owner(), name), lambda value: _set_existing(owner(), name, value))


def _set_existing(owner: Any, name: str, value: Any) -> None:
    # Assigning would make an attribute that nobody reads.
    getattr(owner, name)
    setattr(owner, name, value)


def _read_determinism() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    only_warns = getattr(torch, "is_deterministic_algorithms_warn_only_enabled", lambda: False)
    return "warn" if only_warns() else "error"


def _write_determinism(value: str) -> None:
    if value == "warn":
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:
        torch.use_deterministic_algorithms(value == "error")


def _inductor() -> Any:
    import torch._inductor.config as config

    config.deterministic  # noqa: B018  # raises where there is none
    return config


def _attention(name: str) -> Control:
    """One of the implementations that `scaled_dot_product_attention` chooses from."""

    def read() -> bool:
        return bool(getattr(torch.backends.cuda, f"{name}_enabled")())

    def write(value: bool) -> None:
        function: Callable[[bool], None] = getattr(torch.backends.cuda, f"enable_{name}")
        function(value)

    return Control(read, write)


CONTROLS: dict[str, Control] = {
    "torch._inductor.config.deterministic": Control(
        lambda: _inductor().deterministic, lambda value: setattr(_inductor(), "deterministic", value)
    ),
    "torch.use_deterministic_algorithms": Control(_read_determinism, _write_determinism),
    "torch.set_deterministic": Control(
        lambda: torch.is_deterministic(), lambda value: torch.set_deterministic(value)  # type: ignore[attr-defined]
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": _attribute("utils.deterministic.fill_uninitialized_memory"),
    "torch.backends.cudnn.deterministic": _attribute("backends.cudnn.deterministic"),
    "torch.backends.cudnn.benchmark": _attribute("backends.cudnn.benchmark"),
    "torch.backends.mkldnn.deterministic": _attribute("backends.mkldnn.deterministic"),
    "torch.backends.cuda.cudnn_sdp_enabled": _attention("cudnn_sdp"),
    "torch.backends.cuda.flash_sdp_enabled": _attention("flash_sdp"),
    "torch.backends.cuda.mem_efficient_sdp_enabled": _attention("mem_efficient_sdp"),
    "torch.get_num_threads": Control(lambda: torch.get_num_threads(), lambda value: torch.set_num_threads(value)),
    "torch.get_float32_matmul_precision": Control(
        lambda: torch.get_float32_matmul_precision(), lambda value: torch.set_float32_matmul_precision(value)
    ),
    "torch.backends.cudnn.allow_tf32": _attribute("backends.cudnn.allow_tf32"),
}  # fmt: skip
"""By the names that the facts have."""
