"""Whether the installed version needs a replacement on the CPU, found by running the stock op on a small example."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from determinism.frameworks.torch.patches.patch import Patch

_ALERT = "does not have a deterministic implementation"


@contextmanager
def deterministic_mode() -> Iterator[None]:
    """PyTorch's deterministic mode, for a while; without what the public function sets besides."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def alerts_on_cpu(patch: Patch) -> bool:
    """Whether the op raises in deterministic mode."""
    if not patch.probed:
        return False
    with deterministic_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that quantized tensors are deprecated: the program made none
        try:
            patch.run_example(torch.device("cpu"))
        except RuntimeError as error:
            return _ALERT in str(error)
    return False
