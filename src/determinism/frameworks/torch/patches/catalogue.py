"""All replacements, in the order in which they are told.

They are the ops that raise under `torch.use_deterministic_algorithms(True)`, or vary without a word: what the documentation of 2.11 to
2.15 lists, and what else calls PyTorch's alert in the libraries of 2.13.
"""

from __future__ import annotations

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
    putting,
    quantized_resizing,
    reducing_writes,
    running_sums,
    selection,
    unpooling,
)

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
    *putting.PATCHES,
    *indexed_writes.PATCHES,
    *reducing_writes.PATCHES,
    *counting.PATCHES,
    *selection.PATCHES,
    *running_sums.PATCHES,
    *quantized_resizing.PATCHES,
)
