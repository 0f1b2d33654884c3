"""All replacements, in the order in which they are listed; applying them; and the names by which PyTorch rejects ops.

The replaced ops raise under `torch.use_deterministic_algorithms(True)`, or vary silently: those that the documentation of 2.11 to
2.15 lists, and all others that call PyTorch's alert in the libraries of 2.13.

Sources of the names: the documentation of `torch.use_deterministic_algorithms` of 2.11 to 2.15; and the functions that call
`alertNotDeterministic` in the libraries of PyTorch 2.13.0 for CUDA 13.0 (disassembled 2026-11-22). The latter lack
`reflection_pad2d_backward_cuda`, which is documented; `scatter_reduce_cuda_kernel` and `index_reduce_cuda` call it undocumented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._prims_common as formulas

from determinism.frameworks.torch.patches import (
    indexed_writes,
    losses,
    pooling,
    resampling,
    special_tensors,
    statistics,
)
from determinism.frameworks.torch.patches.patch import alerts_on_cpu, bind, can_bind, overloads_in_version
from determinism.types import ReplacedOps

PATCHES = (
    *pooling.PATCHES,
    *resampling.PATCHES,
    *losses.PATCHES,
    *indexed_writes.PATCHES,
    *statistics.PATCHES,
    *special_tensors.PATCHES,
)


def apply() -> ReplacedOps:
    """Replace all ops for which this build of PyTorch has GPU kernels on GPUs, and those that alert or vary on the CPU.

    Alerts on the CPU are found by running each op on a small example; on a GPU nothing is run, because that would start CUDA in a process
    that may be about to fork.
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


ALERTS = {
    "adaptive-avg-pool2d": "adaptive_avg_pool2d_backward_cuda",
    "adaptive-avg-pool3d": "adaptive_avg_pool3d_backward_cuda",
    "avg-pool3d": "avg_pool3d_backward_cuda",
    "adaptive-max-pool2d": "adaptive_max_pool2d_backward_cuda",
    "fractional-max-pool2d": "fractional_max_pool2d_backward_cuda",
    "fractional-max-pool3d": "fractional_max_pool3d_backward_cuda",
    "max-pool3d": "max_pool3d_with_indices_backward_cuda",
    "max-unpool2d": "max_unpooling2d_forward_out",
    "max-unpool3d": "max_unpooling3d_forward_out",
    "interpolate-linear": "upsample_linear1d_backward_out_cuda",
    "interpolate-bilinear": "upsample_bilinear2d_backward_out_cuda",
    "interpolate-trilinear": "upsample_trilinear3d_backward_out_cuda",
    "interpolate-bicubic": "upsample_bicubic2d_backward_out_cuda",
    "interpolate-bilinear-antialias": "upsample_bilinear2d_aa_backward_out_cuda",
    "interpolate-bicubic-antialias": "upsample_bicubic2d_aa_backward_out_cuda",
    "reflection-pad1d": "reflection_pad1d_backward_out_cuda",
    "reflection-pad2d": "reflection_pad2d_backward_cuda",
    "reflection-pad3d": "reflection_pad3d_backward_out_cuda",
    "replication-pad1d": "replication_pad1d_backward_cuda",
    "replication-pad2d": "replication_pad2d_backward_cuda",
    "replication-pad3d": "replication_pad3d_backward_cuda",
    "grid-sample2d": "grid_sampler_2d_backward_cuda",
    "grid-sample3d": "grid_sampler_3d_backward_cuda",
    "grid-sample-cudnn": "cudnn_grid_sampler_backward",
    "nll-loss2d": "nll_loss2d_forward_out_cuda_template",
    "ctc-loss": "ctc_loss_backward_gpu",
    "embedding-bag-max": "embedding_bag_backward_cuda_max",
    "put": "put_",
    "scatter-reduce": "scatter_reduce_cuda_prod_",
    "scatter-with-reduce": "scatter_reduce_cuda_kernel",
    "index-reduce": "index_reduce_cuda",
    "histc": "_histc_cuda with floating point input",
    "bincount": "_bincount_cuda",
    "median": "median CUDA with indices output",
    "nanmedian": "median CUDA with indices output",
    "quantized-resize": "quantized_resize_cpu_",
}
"""By identity of a patch, the name in the alert. The others have none: their stock kernels sort in deterministic mode, or vary silently."""

# `torch.compile` raises alerts by itself while it traces: a few of PyTorch's Python formulas repeat those of the kernels.
# Tracing calls no kernel, so replacing kernels does not remove them. They are identified by the names that they mention.

SILENT = frozenset(ALERTS.values())
"""The names of replaced ops in alerts. After tracing, their kernels run; but `max_unpool` becomes an `index_put`, which is deterministic
in deterministic mode."""


def silence() -> Callable[[], None]:
    """Suppress the alerts for replaced ops during tracing; returns a function that restores them."""
    stock = getattr(formulas, "alert_not_deterministic", None)
    if stock is None or hasattr(stock, "__wrapped__"):
        return lambda: None

    def alert_not_deterministic(caller: str, *given: Any, **named: Any) -> None:
        if caller not in SILENT:
            stock(caller, *given, **named)

    alert_not_deterministic.__wrapped__ = stock  # type: ignore[attr-defined]
    formulas.alert_not_deterministic = alert_not_deterministic

    def restore() -> None:
        formulas.alert_not_deterministic = stock

    return restore
