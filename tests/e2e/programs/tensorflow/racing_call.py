"""Trains with a step compiled by XLA, in which one op adds in an arbitrary order, as kernels with atomic additions do.

    python racing_call.py [plain | called | looped | chosen | within | stable]

XLA has no such op on the CPU, so a custom call simulates it, written with ctypes after `xla/service/custom_call_target_registry.h`.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_char, c_char_p, c_float, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

C = ctypes.CDLL(None)
ELEMENTS = 512
LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
GLOBAL = "_ZN3xla24CustomCallTargetRegistry6GlobalEv"
REGISTER = "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"


class String(Structure):
    """A `std::string` as libstdc++ lays it out."""

    _fields_ = (("data", c_char_p), ("size", c_size_t), ("local", c_char * 16))


def string(text: str) -> String:
    return String(text.encode(), len(text))


@ctypes.CFUNCTYPE(None, POINTER(c_float), POINTER(POINTER(c_float)))
def add_in_any_order(total: Any, given: Any) -> None:
    values = np.ctypeslib.as_array(given[0], (ELEMENTS,))
    # From the C library, so that no Python function that could be probed or seeded determines the order.
    seed = c_uint32()
    C.getrandom(ctypes.byref(seed), 4, 0)
    order = np.argsort((np.arange(ELEMENTS, dtype=np.uint64) * 2654435761 ^ seed.value) % 65521, kind="stable")
    total[0] = np.add.accumulate(values[order])[-1]


def register() -> None:
    folder = Path(tf.__file__).parent
    library = next(one for name in LIBRARIES if hasattr(one := ctypes.CDLL(str(folder / name)), REGISTER))
    registry = getattr(library, GLOBAL)
    registry.restype = c_void_p
    enter = getattr(library, REGISTER)
    enter.argtypes = [c_void_p, POINTER(String), c_void_p, POINTER(String)]
    enter.restype = None
    enter(registry(), string("add_in_any_order"), ctypes.cast(add_in_any_order, c_void_p), string("Host"))


register()


def racing_sum(values: Any) -> Any:
    return gen_xla_ops.xla_custom_call([values], "add_in_any_order", "", tf.float32, [])  # SITE race


weights = tf.Variable(tf.ones([ELEMENTS]))
rows = tf.constant(np.random.default_rng(0).normal(size=ELEMENTS).astype(np.float32) * 1e4)


@tf.function
def summed(values: Any) -> Any:
    return racing_sum(values)


@tf.function(jit_compile=True)
def step(samples: Any, how: str) -> Any:
    values = samples * weights
    total = tf.constant(0.0)
    if how == "called":
        total = summed(values)
    elif how == "looped":
        for _ in tf.range(3):
            total = total + racing_sum(values)
    elif how == "chosen":
        total = tf.cond(tf.reduce_max(samples) > 0.0, lambda: racing_sum(values), lambda: tf.reduce_sum(values))
    elif how == "stable":
        total = tf.reduce_sum(values)
    else:
        total = racing_sum(values)
    weights.assign_sub(1e-12 * total * samples)
    return total / 2.0


@tf.function
def around(samples: Any) -> Any:
    return step(samples + 1.0, "plain") * 2.0


def train(how: str) -> None:
    for _ in range(9):
        loss = around(rows) if how == "within" else step(rows, how)  # SITE step
        print(loss.numpy())


if __name__ == "__main__":
    train(sys.argv[1] if len(sys.argv) > 1 else "plain")
