"""Trains a few steps; at step `at` it ends in the way that its first argument says."""

import ctypes
import os
import signal
import sys
import time

import tinyframe as frame


def end(how: str, step: int) -> None:
    if how == "raise":
        raise ValueError("broken")
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "_exit":
        os._exit(5)
    if how == "abort":
        os.abort()
    if how == "sometimes" and os.path.exists("second"):
        sys.exit(4)
    if how == "wait":
        open("waiting", "w").close()
        time.sleep(60)
    if how == "hold" and os.path.exists("second"):
        give_up = time.monotonic() + 60
        while not os.path.exists("released") and time.monotonic() < give_up:
            time.sleep(0.01)
    open("second", "w").close()


how = sys.argv[1] if len(sys.argv) > 1 else "finish"
at = int(sys.argv[2]) if len(sys.argv) > 2 else 2
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 3

frame.manual_seed(7)
if how == "unseeded":
    frame.seed()
weight = frame.randn(8)
if how == "longer" and os.path.exists("second"):
    steps += 2
for step in range(steps):
    batch = frame.randn(8)
    if step == at:
        end(how, step)
    loss = frame.mean(frame.multiply(weight, batch))
    weight = frame.subtract(weight, frame.multiply(batch, frame.full(8, 0.1)))
    frame.step(weight=weight)
print("finished", steps)
