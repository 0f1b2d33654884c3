"""TensorFlow's settings that change results, as they were when recording began."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import config

_BUILT_WITH = {"CUDA": "cuda_version", "cuDNN": "cudnn_version"}


def settings() -> dict[str, str]:
    """Name and value of each setting, as text."""
    values = {
        "tf.config.experimental.enable_op_determinism()": config.is_op_determinism_enabled(),
        "tf.config.threading.get_intra_op_parallelism_threads()": tf.config.threading.get_intra_op_parallelism_threads(),
        "tf.config.threading.get_inter_op_parallelism_threads()": tf.config.threading.get_inter_op_parallelism_threads(),
    }
    return {name: str(value) for name, value in values.items()}


def libraries() -> dict[str, str]:
    """Name and version of the libraries that this build of TensorFlow computes with on a GPU."""
    built = tf.sysconfig.get_build_info()
    return {f"library {name}": str(built.get(key, "none")) for name, key in _BUILT_WITH.items()}
