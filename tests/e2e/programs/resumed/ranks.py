"""Two ranks sum their gradients; each saves its own state and continues from it."""

import os
import sys

import torch
import torch.distributed as dist

import determinism

how, without = sys.argv[1], sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
file = f"rank-{rank}.state"
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.4), torch.nn.Linear(4, 1))
torch.manual_seed(os.getpid() if how == "resumed" else rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first_step = 0
if how == "resumed":
    state = determinism.state.load(file)
    if without:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    else:
        determinism.state.restore(state, model=model, optimizer=optimizer)
    first_step = state.step
for step in range(first_step, 4):
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 16).reshape(4, 4) * (rank + step)).pow(2).mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if how == "first" and step == 1:
        determinism.state.capture(model=model, optimizer=optimizer, step=step + 1).save(file)
        break
dist.destroy_process_group()
