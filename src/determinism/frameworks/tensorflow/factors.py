"""Holds what TensorFlow has of an experiment's factors still."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

from determinism.factors.request import FactorRequest
from determinism.frameworks.wrapping import wrap

_PARALLEL_STAGES = ("parallel_map_dataset_v2", "parallel_interleave_dataset_v4", "parallel_batch_dataset")
"""What makes the stages of a pipeline that work on several elements at a time."""


def start(request: FactorRequest) -> None:
    """Do what is asked for; TensorFlow was just imported.

    Args:
        request: The factors.
    """
    if request.is_fixed("tensorflow-seed"):
        # As `keras.utils.set_random_seed` does; Keras may be in the middle of its own import.
        random.seed(0)
        np.random.seed(0)
        tf.random.set_seed(0)
    if request.is_fixed("deterministic-ops"):
        tf.config.experimental.enable_op_determinism()
    if request.is_fixed("tensorflow-threads"):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if request.is_fixed("pipeline-parallel") or request.is_fixed("pipeline-order"):
        _order_pipelines(one_by_one=request.is_fixed("pipeline-parallel"))


def _order_pipelines(*, one_by_one: bool) -> None:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kwargs["deterministic"] = "true"
        if one_by_one and "num_parallel_calls" in kwargs:
            kwargs["num_parallel_calls"] = tf.constant(1, tf.int64)
        return original(*args, **kwargs)

    for name in _PARALLEL_STAGES:
        if hasattr(gen_dataset_ops, name):
            wrap(gen_dataset_ops, name, around)
