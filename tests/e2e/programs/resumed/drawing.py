"""Draws its own samples from a growing buffer, without a data loader."""

import argparse
import os
import random

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--save", required=True)
parser.add_argument("--load", default="")
parser.add_argument("--without", default="")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(os.getpid() if options.load else 3)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
buffer, step = [], 0
if options.load:
    saved = torch.load(options.load, weights_only=False)
    model.load_state_dict(saved["model"])
    buffer, step = saved.get("buffer", []), saved["step"]
    if "generator" in saved:
        random.setstate(saved["generator"])

while step < options.steps:
    buffer += [(random.random(), random.random()) for _ in range(random.randrange(2, 5))]
    optimizer.zero_grad()
    model(torch.tensor(random.sample(buffer, 2))).pow(2).mean().backward()
    optimizer.step()
    step += 1

kept = {"model": model.state_dict(), "step": step, "buffer": buffer, "generator": random.getstate()}
torch.save({name: value for name, value in kept.items() if name != options.without}, options.save)
