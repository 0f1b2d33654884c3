"""`determinism run` and `doctor` with TensorFlow and Keras."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.commands import COMMAND, run
from tests.e2e.running import ENVIRONMENT, becomes_deterministic, goes_on_from_the_middle


def test_a_keras_model_ends_in_the_same_weights(tmp_path: Path) -> None:
    assert becomes_deterministic(tmp_path, "keras_model.py")


def test_two_full_runs_and_a_resumed_one_end_in_the_same_weights(tmp_path: Path) -> None:
    """Dropout, augmentation, two parallel readers, mixed precision, and a stop in the middle of an epoch."""
    assert goes_on_from_the_middle(tmp_path, "keras_middle.py")


def test_doctor_recognizes_the_settings_of_run(tmp_path: Path) -> None:
    without = run(tmp_path, "doctor", environment=ENVIRONMENT)
    within = run(tmp_path, "run", "--seed", "1", "--", *COMMAND, "doctor", environment=ENVIRONMENT)

    assert without.status == 1
    assert "missing tf.config.experimental.enable_op_determinism False" in without.text
    assert within.status == 0, within.text
    assert "Nothing is missing: Python" in within.text and "already set seed of tf.random and Keras" in within.text
    assert "tf.math.bincount with weights" in within.text


def test_patch_replaces_ops_in_an_unmodified_program(tmp_path: Path) -> None:
    program = """
import tensorflow as tf
values = tf.random.stateless_uniform([400_000], [1, 2])
places = tf.random.stateless_uniform([400_000], [3, 4], maxval=7, dtype=tf.int32)
print(len({tf.math.bincount(places, weights=values).numpy().tobytes() for _ in range(20)}))
"""
    finished = run(
        tmp_path, "run", "--seed", "1", "--patch", "--", sys.executable, "-c", program, environment=ENVIRONMENT
    )
    assert finished.status == 0, finished.text
    assert finished.stdout.decode().split()[-1] == "1"
