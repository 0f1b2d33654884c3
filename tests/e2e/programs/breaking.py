"""Trains for a few steps on one thread; at step `at` it ends in the way given by its first argument."""

import ctypes
import os
import signal
import sys
import time

import torch


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
    open("second", "w").close()


how = sys.argv[1] if len(sys.argv) > 1 else "finish"
at = int(sys.argv[2]) if len(sys.argv) > 2 else 2
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 3

torch.set_num_threads(1)
torch.manual_seed(7)
if how == "unseeded":
    torch.seed()
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if how == "longer" and os.path.exists("second"):
    steps += 2
for step in range(steps):
    batch = torch.randn(16, 8)
    if step == at:
        end(how, step)
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
print("finished", steps)
