"""PyTorch's settings that change results."""

from __future__ import annotations

import torch


def settings() -> dict[str, str]:
    """Name and value of each setting, as text."""
    values = {
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_num_interop_threads()": torch.get_num_interop_threads(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.is_available(),
    }
    return {name: str(value) for name, value in values.items()}
