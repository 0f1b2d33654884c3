"""Trains under distribution strategies on two logical CPU devices, twice within this process, and compares the recordings.

This is a separate program because TensorFlow accepts logical devices only before it computes anything: `python -m
tests.tensorflow_strategies mirrored:function:seeded ...` prints the findings for each case as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from determinism.comparison.runs import compare_runs
from tests.tensorflow_runs import recorded


def _strategy(name: str) -> Any:
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if name == "central":
        return tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    return (
        tf.distribute.MultiWorkerMirroredStrategy() if name == "workers" else tf.distribute.OneDeviceStrategy("CPU:1")
    )


def _train(name: str, way: str, seed: int | None) -> None:
    strategy = _strategy(name)
    with strategy.scope():
        weights = tf.Variable(tf.ones([2, 1]))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weights])
    samples = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(32.0) / 32.0, [16, 2]))
    batches = strategy.experimental_distribute_dataset(samples.shuffle(16, seed=seed).batch(4))

    def learn(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    inner = tf.function(learn) if way == "replica" else learn

    def step(batch: tf.Tensor) -> Any:
        return strategy.run(inner, args=(batch,))

    outer = tf.function(step) if way == "function" else step
    for batch in batches:
        strategy.reduce("SUM", outer(batch), axis=None).numpy()


def _fit(name: str, seed: int | None) -> None:
    keras.utils.set_random_seed(np.random.SeedSequence().entropy % 2**31 if seed is None else seed)
    with _strategy(name).scope():
        model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    samples = np.arange(16, dtype=np.float32).reshape(8, 2) / 16
    model.fit(samples, samples[:, :1], batch_size=4, verbose=0, shuffle=False)


def _case(case: str) -> dict[str, Any]:
    name, way, seeding = case.split(":")
    seed = 7 if seeding == "seeded" else None
    run = partial(_fit, name, seed) if way == "fit" else partial(_train, name, way, seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = [recorded(Path(folder), run) for _ in range(2)]  # on one line, since line numbers are compared as well
        comparison = compare_runs([one.trace for one in runs])
        description = runs[0].trace.processes[0].description
        first = comparison.first_divergence
        return {
            "verdict": comparison.verdict.value,
            "kind": str(first.kind) if first is not None else None,
            "op": first.op if first is not None else None,
            "steps": description["steps"],
            "steps_by": description["steps_by"],
            "held": [json.loads(one.arguments) for one in runs[0].ops("determinism::step")],
            "blind_spots": sorted({one["id"] for one in description["blind_spots"]}),
            "products": len(runs[0].ops("tf::MatMul")),
            "reductions": len(runs[0].ops("tf::AllReduce")),
            "replicas": sorted({(one.module or "").partition("/")[0] for one in runs[0].ops("tf::MatMul")}),
        }


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print(json.dumps({case: _case(case) for case in sys.argv[1:]}))
