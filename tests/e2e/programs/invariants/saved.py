"""Trains, saves checkpoints, and continues from them.

python saved.py HOW
"""

import io
import shutil
import sys
import threading

import torch
from torch import nn

HOW = sys.argv[1]


class Slow(io.FileIO):
    """A file whose first bytes are written before the weights change, and the rest afterwards."""

    def write(self, data: object) -> int:
        """Write, and wait once."""
        begun.set()
        stepped.wait()
        return super().write(data)


begun, stepped = threading.Event(), threading.Event()
torch.manual_seed(0)
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def step() -> None:
    """Train for a step."""
    optimizer.zero_grad()
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()


def save(file: object) -> None:
    """Save everything."""
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)  # SITE save


step()
if HOW == "torn":
    with Slow("checkpoint.pt", "w") as file:
        saver = threading.Thread(target=save, args=(file,))
        saver.start()
        begun.wait()
        step()
        stepped.set()
        saver.join()
else:
    save("checkpoint.pt")
    shutil.copy("checkpoint.pt", "older.pt")
    step()
    save("checkpoint.pt")
    if HOW == "older":
        shutil.copy("older.pt", "checkpoint.pt")
step()
found = torch.load("checkpoint.pt", weights_only=True)  # SITE load
net.load_state_dict(found["net"])
optimizer.load_state_dict(found["optimizer"])
step()
print(net.weight.sum().item())
