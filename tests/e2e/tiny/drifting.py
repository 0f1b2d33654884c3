"""Trains many short steps; from step 3 on it differs in the way that its first argument says."""

import os
import sys
import time

import tinyframe as frame

how, steps = sys.argv[1], int(sys.argv[2])
is_second = os.path.exists("first")
open("first", "w").close()

frame.manual_seed(7)
weight = frame.randn(8)
for step in range(steps):
    batch = frame.full(8, 0.5 if step == 3 and is_second and how == "argument" else 1.0)
    if step == 3 and is_second and how == "structure":
        continue
    if step == 3 and how == "dead":
        frame.full(3, time.time() % 1)
    weight = frame.subtract(weight, frame.multiply(batch, weight))
    frame.step(weight=weight)
    time.sleep(0.02)
