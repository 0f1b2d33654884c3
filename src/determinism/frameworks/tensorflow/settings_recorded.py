"""TensorFlow's settings that change results, as they were when recording began."""

from __future__ import annotations

import os

import tensorflow as tf
from tensorflow.python.framework import config


def settings() -> dict[str, str]:
    """Name and value of each setting, as text."""
    values = {
        "tf.config.experimental.enable_op_determinism()": config.is_op_determinism_enabled(),
        "tf.config.threading.get_intra_op_parallelism_threads()": tf.config.threading.get_intra_op_parallelism_threads(),
        "tf.config.threading.get_inter_op_parallelism_threads()": tf.config.threading.get_inter_op_parallelism_threads(),
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "not set"),
        "TF_XLA_FLAGS": os.environ.get("TF_XLA_FLAGS", "not set"),
    }
    return {name: str(value) for name, value in values.items()}
