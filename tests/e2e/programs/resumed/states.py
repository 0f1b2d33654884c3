"""Trains with dropout, shuffling, augmenting workers and a scaler; can save its state in mid-epoch and continue from it."""

import argparse
import hashlib
import random
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import determinism

EPOCHS, SAMPLES, BATCH = 2, 16, 4

parser = argparse.ArgumentParser()
parser.add_argument("--save", help="end in the middle of an epoch, and save the state under this name, in both forms")
parser.add_argument("--load", help="go on from the state under this name")
parser.add_argument("--without", default="", help="what is not restored")
parser.add_argument("--form", default="file", choices=["file", "torch.save"])
options = parser.parse_args()


class Augmented(Dataset):
    """Samples with noise from three generators of a worker."""

    def __init__(self):
        self.values = torch.linspace(-1, 1, SAMPLES * 6).reshape(SAMPLES, 6)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + torch.rand(6)
        return self.values[index] + 0.1 * noise.float(), index % 3


torch.set_num_threads(1)
if not options.load:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
own = np.random.default_rng(3)
model = torch.nn.Sequential(
    torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 3)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
plain = DataLoader(Augmented(), batch_size=BATCH, shuffle=True, num_workers=2)
loader = determinism.state.resumable(plain)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "loader": loader, "own": own}

first_epoch = step = 0
if options.load:
    if options.form == "file":
        state = determinism.state.load(f"{options.load}.state")
    else:
        state = determinism.state.from_dict(torch.load(f"{options.load}.pt", weights_only=True)["state"])
    if options.without == "everything":
        model.load_state_dict(state["model"])
    else:
        given = {name: part for name, part in parts.items() if name != options.without}
        determinism.state.restore(state, allow=[options.without] if options.without else [], **given)
    first_epoch, step = state.epoch, state.step

for epoch in range(first_epoch, EPOCHS):
    for features, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(features), labels)
        scaler.scale(loss * (1 + 0.1 * own.random() + 0.1 * random.random())).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        step += 1
        if options.save and step == 6:
            state = determinism.state.capture(epoch=epoch, step=step, **parts)
            assert state.gaps == []
            state.save(f"{options.save}.state")
            torch.save({"state": state.to_dict()}, f"{options.save}.pt")
            sys.exit()

digest = hashlib.sha256(step.to_bytes())
for tensor in [*model.state_dict().values(), *(value for held in optimizer.state.values() for value in held.values())]:
    digest.update(tensor.numpy().tobytes())
print(digest.hexdigest(), scaler.get_scale(), scheduler.get_last_lr())
