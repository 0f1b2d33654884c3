"""`determinism run` and `doctor` with JAX."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.commands import COMMAND, run
from tests.e2e.running import ENVIRONMENT, becomes_deterministic, goes_on_from_the_middle


def test_a_model_ends_in_the_same_weights(tmp_path: Path) -> None:
    assert becomes_deterministic(tmp_path, "jax_model.py")


def test_two_full_runs_and_a_resumed_one_end_in_the_same_weights(tmp_path: Path) -> None:
    """Dropout, augmentation by NumPy and Python, low precision, and a stop in the middle."""
    assert goes_on_from_the_middle(tmp_path, "jax_middle.py")


def test_doctor_recognizes_the_settings_of_run(tmp_path: Path) -> None:
    without = run(tmp_path, "doctor", environment=ENVIRONMENT)
    within = run(tmp_path, "run", "--seed", "1", "--", *COMMAND, "doctor", environment=ENVIRONMENT)

    assert without.status == 1 and "missing seed not set" in without.text
    assert within.status == 0, within.text
    assert "left unchanged jax_default_prng_impl threefry2x32" in within.text
