"""Trains many steps, saves and resumes; one step differs from run to run in the way that its first argument says."""

import os
import random
import signal
import sys
import time

import tinyframe as frame

how, at, steps, *places = sys.argv[1:]
at, steps = int(at), int(steps)
save, load = [*places, "", ""][:2]
run = len([name for name in os.listdir() if name.startswith("ran-")]) + 1
open(f"ran-{run}", "w").close()

weight, begin = frame.full(8, 1.0), 0
if load:
    weight, begin = frame.load(load)["weight"], int(open(f"{load}.step").read())
    if how == "forgetful":
        weight = frame.full(8, 2.0)
for step in range(begin, steps):
    if how == "breaks" and run == 4 and step == at:
        sys.exit(5)
    if how == "waits" and run == 3 and step == at:
        open("waiting", "w").close()
        time.sleep(60)
    factor = 0.5 + step / 1000
    if how == "wandering" and step == max(0, at - 10 * run):
        factor = 1 / run
    if how == "killed" and step == at:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == at:
        if how in ("planted", "forgetful", "breaks", "waits"):
            factor = random.random()
        if how == "once" and run == 1:
            factor = 0.25
    weight = frame.subtract(weight, frame.multiply(frame.full(8, factor), weight))
    frame.step(weight=weight)
if save:
    frame.save({"weight": weight}, save)
    with open(f"{save}.step", "w") as file:
        file.write(str(steps))
