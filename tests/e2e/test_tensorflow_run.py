"""`determinism run` and `doctor` with TensorFlow and Keras."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.commands import COMMAND, run
from tests.e2e.running import ENVIRONMENT, becomes_deterministic


def test_a_keras_model_ends_in_the_same_weights(tmp_path: Path) -> None:
    assert becomes_deterministic(tmp_path, "keras_model.py")


def test_doctor_finds_what_run_has_set(tmp_path: Path) -> None:
    without = run(tmp_path, "doctor", environment=ENVIRONMENT)
    within = run(tmp_path, "run", "--seed", "1", "--", *COMMAND, "doctor", environment=ENVIRONMENT)

    assert without.status == 1
    assert "missing tf.config.experimental.enable_op_determinism False" in without.text
    assert within.status == 0, within.text
    assert "Nothing is missing: Python" in within.text and "was so already seed of tf.random and Keras" in within.text
    assert "tf.math.bincount with weights" in within.text
