"""A thread saves checkpoints while the main thread trains on; at the end one of them is loaded and evaluated.

    python snapshots.py [torn]

The main thread makes a copy to be saved. Without it the thread saves what is being trained.
"""

import sys
import threading
import time

import torch
from planting import passed_before
from torch import Tensor, nn

TORN = "torn" in sys.argv
SLOW_RUN = passed_before() % 2 if TORN else 0


def save(state: dict[str, Tensor], step: int) -> None:
    """Save a checkpoint tensor by tensor, as a writer of shards does."""
    for name, tensor in state.items():
        time.sleep(0.2 if SLOW_RUN and step == 1 and name == "2.weight" else 0)
        torch.save(tensor, f"{step}-{name}.pt")  # SITE


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
writers = []
for step in range(4):
    optimizer.zero_grad()
    net(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()
    state = net.state_dict()
    if not TORN:
        state = {name: tensor.clone() for name, tensor in state.items()}
    writers.append(threading.Thread(target=save, args=(state, step), name=f"writer-{step}"))
    writers[-1].start()
    time.sleep(0.05)
for writer in writers:
    writer.join()
net.load_state_dict({name: torch.load(f"1-{name}.pt") for name in net.state_dict()})
print(net(torch.ones(2, 4)).sum().item())
