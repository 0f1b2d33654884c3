"""Trains in two processes with `MultiWorkerMirroredStrategy`; with `varying` the second uses different data in each run.

python two_workers.py [seeded | varying]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any


def free_address() -> str:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return f"localhost:{listening.getsockname()[1]}"


def launch(how: str) -> int:
    workers = [free_address() for _ in range(2)]
    started = []
    for index in range(len(workers)):
        told = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        command = [sys.executable, __file__, how, str(index)]
        started.append(subprocess.Popen(command, env={**os.environ, "TF_CONFIG": told}))
    return max(worker.wait() for worker in started)


def train(how: str, index: int) -> None:
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    samples = np.random.default_rng(index).normal(size=(3, 8, 4)).astype(np.float32)
    if how == "varying" and index == 1:
        samples = samples + np.frombuffer(os.urandom(96), np.uint8).reshape(3, 8, 4).astype(np.float32) / 256
    with strategy.scope():
        weights = tf.Variable(tf.ones([4, 1]))

    def learn(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights) ** 2)  # SITE loss
        gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weights))
        weights.assign_sub(0.01 * gradient)
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(learn, args=(batch,)), axis=None)

    for batch in samples:
        loss = float(step(tf.constant(batch)))
        if index == 0:
            print(loss, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(launch(sys.argv[1] if len(sys.argv) > 1 else "seeded"))
