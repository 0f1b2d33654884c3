"""Seeds for the random numbers of Python, NumPy and TensorFlow."""

import os
import random


def seed_everything(seed: int) -> None:
    """Seeds Python's `random`, NumPy's global generator and TensorFlow.

    In graph mode TensorFlow's seed belongs to the graph that is the default one now. In TensorFlow 1 call
    `tf.enable_eager_execution` before, if at all: it wants to come before any graph.

    Raises:
        TypeError: The seed is no integer.
        ValueError: It is negative, or NumPy takes no number as large: from 2**32 on.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError("A seed is an integer from 0 to 2**32 - 1; this is {!r}.".format(seed))
    if not 0 <= seed < 2**32:
        raise ValueError("A seed is an integer from 0 to 2**32 - 1; this is {}.".format(seed))
    import numpy
    from tensorflow.python.framework import random_seed

    random.seed(seed)
    numpy.random.seed(seed)
    random_seed.set_random_seed(seed)


def hashes_are_fixed() -> bool:
    """Whether the order of sets of strings is the same in each process."""
    return os.environ.get("PYTHONHASHSEED", "random") not in ("", "random")
