"""Trains up to a step and saves; on request continues from a checkpoint, from which a part may be missing."""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--save", default="")
parser.add_argument("--load", default="")
parser.add_argument("--without", default="")
parser.add_argument("--unseeded", action="store_true")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--beyond", action="store_true", help="make one more step after saving")
options = parser.parse_args()

torch.set_num_threads(1)
if not options.unseeded:
    torch.manual_seed(os.getpid() if options.load else 3)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step = 0
if options.load:
    saved = torch.load(options.load, weights_only=True)
    model.load_state_dict(saved["model"])
    if "optimizer" in saved:
        optimizer.load_state_dict(saved["optimizer"])
    if "rng" in saved:
        torch.set_rng_state(saved["rng"])
    step = saved["step"]


def train():
    optimizer.zero_grad()
    loss = model(torch.linspace(-1, 1, 32).reshape(8, 4) * (step % 3 + 1)).pow(2).mean()
    loss.backward()
    optimizer.step()


while step < options.steps:
    train()
    step += 1

if options.save:
    kept = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step,
    }
    torch.save({name: value for name, value in kept.items() if name != options.without}, options.save)  # SITE
if options.beyond:
    train()
if options.fail:
    raise SystemExit(3)
print(model[0].weight.sum().item())
