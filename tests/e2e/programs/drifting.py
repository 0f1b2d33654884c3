"""Trains many short steps; from step 3 on it differs in the way that its first argument says."""

import os
import sys
import time

import torch

how, steps = sys.argv[1], int(sys.argv[2])
is_second = os.path.exists("first")
open("first", "w").close()

torch.set_num_threads(1)
torch.manual_seed(7)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    batch = torch.full((16, 8), 0.5 if step == 3 and is_second and how == "argument" else 1.0)
    if step == 3 and is_second and how == "structure":
        continue
    if step == 3 and how == "dead":
        torch.full((3,), time.time() % 1)
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.02)
