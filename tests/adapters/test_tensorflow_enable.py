"""`determinism.enable` with TensorFlow: what is set, that it has an effect, and that everything is restored exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import determinism
from determinism.frameworks.tensorflow.enable import CONTROLS
from determinism.knowledge.settings import Effect, facts_of
from tests.tensorflow_runs import gives_different_results

NEEDS_THREADS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor adds up in one order")
BOXES, CROP = 256, 48


def gradient_of_crops() -> Callable[[], bytes]:
    """The gradient of cropping an image, in which many crops contribute to the same pixels."""
    random = np.random.RandomState(0)
    gradients = tf.constant(random.randn(BOXES, CROP, CROP, 8).astype("f"))
    images = tf.constant(random.randint(0, 4, BOXES).astype("i"))
    boxes = tf.constant((np.tile([[0.1, 0.1, 0.9, 0.9]], (BOXES, 1)) + random.rand(BOXES, 4) * 0.1).astype("f"))
    return lambda: (
        tf.raw_ops.CropAndResizeGradImage(
            grads=gradients, boxes=boxes, box_ind=images, image_size=[4, 64, 64, 8], T=tf.float32
        )
        .numpy()
        .tobytes()
    )


def test_every_control_has_a_fact_and_every_fact_a_control() -> None:
    assert set(CONTROLS) == {fact.name for fact in facts_of("tensorflow") if fact.kind == "control"}


@NEEDS_THREADS
def test_a_nondeterministic_op_is_deterministic_only_while_enabled() -> None:
    gradient = gradient_of_crops()

    assert gives_different_results(gradient)
    with determinism.enable():
        assert len({gradient() for _ in range(60)}) == 1
    assert gives_different_results(gradient)


def test_settings_of_this_version_take_effect_and_are_restored() -> None:
    before = {name: control.read() for name, control in CONTROLS.items()}
    with determinism.enable(seed=1) as settings:
        effects = {one.name: one.effect for one in settings if one.group == "tensorflow"}
        assert effects["tf.config.experimental.enable_op_determinism"] is Effect.NOW
        assert effects["TF_DETERMINISTIC_OPS"] is effects["TF_CUDNN_DETERMINISTIC"] is Effect.ABSENT
        assert effects["seed of tf.random and Keras"] is Effect.NOW
        assert {entry.device for entry in settings.remaining} >= {"cpu"}
        assert "TF_DETERMINISTIC_OPS" not in os.environ

    assert {name: control.read() for name, control in CONTROLS.items()} == before


def test_random_ops_are_refused_only_without_a_seed() -> None:
    tf.random.set_seed(None)
    with determinism.enable(), pytest.raises(RuntimeError, match="Random ops require a seed"):
        tf.random.uniform([1])
    with determinism.enable(seed=1):
        first = tf.random.uniform([3]).numpy()
    with determinism.enable(seed=1):
        assert (tf.random.uniform([3]).numpy() == first).all()
    assert tf.random.uniform([3]).numpy().tolist() != first.tolist()


def test_changing_threads_that_already_run_is_reported_as_failed() -> None:
    tf.constant(1)
    with determinism.enable(threads=7) as settings:
        setting = settings["tf.config.threading.get_intra_op_parallelism_threads"]

    assert setting.effect is Effect.FAILED and "RuntimeError" in setting.detail


LATE = """
import determinism, json
settings = determinism.enable(seed=1, threads=1)
waited = settings["tf.config.experimental.enable_op_determinism"].effect
import tensorflow as tf
from tensorflow.python.framework import config
found = [
    waited, config.is_op_determinism_enabled(), tf.config.threading.get_intra_op_parallelism_threads(),
    [one.name for one in settings.open], float(tf.random.uniform([1])[0]), bool(tf.config.list_logical_devices()),
]
print(json.dumps(found))
"""


def test_settings_wait_for_a_later_import() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", LATE], env=environment)) for _ in range(2)]

    assert runs[0] == runs[1]
    assert runs[0][:4] == ["waits for the import", True, 1, []]
