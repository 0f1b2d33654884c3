"""Saves a checkpoint in a thread and loads it again; the thread gets a copy, and is joined first."""

import threading
from pathlib import Path

import torch
from torch import Tensor, nn

CHECKPOINT = Path("checkpoint.pt")


def save(state: dict[str, Tensor]) -> None:
    torch.save(state, CHECKPOINT)


torch.manual_seed(12)
CHECKPOINT.unlink(missing_ok=True)
model = nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 1))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(32, 6)
for step in range(8):
    loss = (model(inputs) - inputs.amin(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        copied = {name: value.detach().clone() for name, value in model.state_dict().items()}
        writer = threading.Thread(target=save, args=(copied,))
        writer.start()
writer.join()
if CHECKPOINT.exists():
    model.load_state_dict(torch.load(CHECKPOINT))
print(model(inputs).mean().item())
