"""Measures ops in a process of its own: `determinism audit` starts it, hands it a request, and reads a line per result."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from determinism.frameworks.op_audit.process import about_machine, answer, read_request, with_device
from determinism.frameworks.tensorflow.op_audit.cases import all_cases
from determinism.frameworks.tensorflow.op_audit.measuring import measure


def main() -> int:
    """Read the request on standard input, and write what was found on standard output, line by line."""
    request = read_request()
    # TensorFlow makes its threads with its first op.
    tf.config.threading.set_intra_op_parallelism_threads(request["threads"] or 0)
    tf.config.threading.set_inter_op_parallelism_threads(request["threads"] or 0)
    gpus = tf.config.list_physical_devices("GPU")
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
    given = {name: request[name] for name in ("device", "seed", "runs", "seconds", "deterministic_mode")}
    about = with_device(about_machine(tf.__version__), request["device"], names)
    answer(request, about, all_cases(), partial(measure, **given))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
