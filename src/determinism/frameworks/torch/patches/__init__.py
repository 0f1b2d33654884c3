"""Deterministic implementations of PyTorch's ops that have none, or vary although they claim one."""

from __future__ import annotations

import torch

from determinism.frameworks.replaced_ops import ReplacedOps
from determinism.frameworks.torch.patches.binding import bind, can_bind, overloads_in_version
from determinism.frameworks.torch.patches.catalogue import PATCHES
from determinism.frameworks.torch.patches.compiled_alerts import silence
from determinism.frameworks.torch.patches.probing import alerts_on_cpu


def apply() -> ReplacedOps:
    """Replace on GPUs each op that this build of PyTorch has a kernel for there, and on the CPU those that alert or vary.

    What alerts on the CPU is found by running it on a small example; on a GPU nothing is run, because that would start CUDA in a process that
    may be about to fork.
    """
    if not can_bind():
        reason = f"replacing needs torch.library.get_kernel, which PyTorch {torch.__version__} does not have"
        return ReplacedOps(reason=reason)
    known = [patch for patch in PATCHES if overloads_in_version(patch)]
    on_gpu, restore_gpu = bind(known, "gpu")
    on_cpu, restore_cpu = bind([patch for patch in known if patch.varies_on_cpu or alerts_on_cpu(patch)], "cpu")

    restore_alerts = silence()

    def restore() -> None:
        restore_alerts()
        restore_cpu()
        restore_gpu()

    return ReplacedOps(
        ops=[patch.what for patch in on_gpu] + [f"{patch.what} on the CPU" for patch in on_cpu],
        absent=[patch.what for patch in PATCHES if patch not in known],
        restore=restore,
    )
