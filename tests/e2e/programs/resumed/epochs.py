"""Trains whole epochs with shuffling, augmentation and dropout; its checkpoint may lack the states of some generators."""

import argparse
import os
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--file", required=True)
parser.add_argument("--load", action="store_true")
parser.add_argument("--without", nargs="*", default=[], help="names of generators that are not saved")
options = parser.parse_args()


class Augmented(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), index / 8) + 0.1 * random.random() + 0.1 * float(np.random.rand())


torch.set_num_threads(1)
for seed in (torch.manual_seed, random.seed, np.random.seed):
    seed(os.getpid() if options.load else 3)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
setters = {"torch": torch.set_rng_state, "python": random.setstate, "numpy": np.random.set_state}
first_epoch = 0
if options.load:
    saved = torch.load(options.file, weights_only=False)
    model.load_state_dict(saved["model"])
    for name, state in saved["generators"].items():
        setters[name](state)
    first_epoch = saved["epoch"]
for _ in range(first_epoch, options.epochs):
    for batch in DataLoader(Augmented(), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
states = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}
kept = {name: state for name, state in states.items() if name not in options.without}
torch.save({"model": model.state_dict(), "generators": kept, "epoch": options.epochs}, options.file)
