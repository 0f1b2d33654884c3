"""Deterministic replacements of TensorFlow's ops that have no deterministic implementation, or vary although they claim one."""

from __future__ import annotations

import tensorflow as tf

from determinism.frameworks.replaced_ops import ReplacedOps
from determinism.frameworks.tensorflow.patches.catalogue import PATCHES, Patch
from determinism.frameworks.tensorflow.patches.replacing import replace_everywhere

VERSIONS = ((2, 16), (2, 21))
"""The first and the last minor version whose kernels these patches are known to fit."""


def apply() -> ReplacedOps:
    """Put every patch in place that is not there yet, wherever a module holds the function that builds the op.

    Nothing is put in place in versions for which there are no patches.
    """
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if not VERSIONS[0] <= version <= VERSIONS[1]:
        bounds = " to ".join(".".join(map(str, bound)) for bound in VERSIONS)
        return ReplacedOps(reason=f"the patches are for TensorFlow {bounds}, and this is {tf.__version__}")
    needed = [patch for patch in PATCHES if not patch.is_in_place()]
    pairs = [pair for patch in needed for pair in patch.replacements()]
    replace_everywhere(pairs)
    return ReplacedOps(ops=_words(needed), restore=lambda: replace_everywhere([(new, old) for old, new in pairs]))


def _words(patches: list[Patch]) -> list[str]:
    return list(dict.fromkeys(patch.what for patch in patches))
