"""All replacements, in the order in which they are told, and putting them in place.

They are the ops that raise under `torch.use_deterministic_algorithms(True)`, or vary without a word: what the documentation of 2.11 to
2.15 lists, and what else calls PyTorch's alert in the libraries of 2.13.
"""

from __future__ import annotations

import torch

from determinism.frameworks.torch.patches import (
    average_pooling,
    counting,
    ctc,
    embedding_bags,
    grid_sampling,
    indexed_writes,
    interpolation,
    map_loss,
    max_pooling,
    padding,
    quantized_resizing,
    reducing_writes,
    selection,
    unpooling,
)
from determinism.frameworks.torch.patches.alerts import silence
from determinism.frameworks.torch.patches.binding import bind, can_bind, overloads_in_version
from determinism.frameworks.torch.patches.patch import alerts_on_cpu
from determinism.types import ReplacedOps

PATCHES = (
    *average_pooling.PATCHES,
    *max_pooling.PATCHES,
    *unpooling.PATCHES,
    *interpolation.PATCHES,
    *padding.PATCHES,
    *grid_sampling.PATCHES,
    *map_loss.PATCHES,
    *ctc.PATCHES,
    *embedding_bags.PATCHES,
    *indexed_writes.PATCHES,
    *reducing_writes.PATCHES,
    *counting.PATCHES,
    *selection.PATCHES,
    *quantized_resizing.PATCHES,
)


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
