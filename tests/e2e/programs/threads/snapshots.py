"""A thread saves checkpoints while the main thread keeps training; at the end one of them is loaded and evaluated.

    python snapshots.py [torn]

The main thread makes a copy for saving. With `torn` the thread saves the tensors that are being trained: in every second
run it saves one of them after the next step, otherwise it finishes before the main thread continues training.
"""

import sys
import threading

import torch
from planting import passed_before
from torch import Tensor, nn

TORN = "torn" in sys.argv
IS_SLOW = bool(TORN and passed_before() % 2)
has_trained_on = threading.Event()


def save(state: dict[str, Tensor], step: int) -> None:
    """Save a checkpoint tensor by tensor, as programs that write shards do."""
    for name, tensor in state.items():
        if IS_SLOW and step == 1 and name == "2.weight":
            has_trained_on.wait()
        torch.save(tensor, f"{step}-{name}.pt")  # SITE torn


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
    if TORN and not (IS_SLOW and step == 1):
        writers[-1].join()
    if step == 2:
        has_trained_on.set()
for writer in writers:
    writer.join()
net.load_state_dict({name: torch.load(f"1-{name}.pt") for name in net.state_dict()})
print(net(torch.ones(2, 4)).sum().item())
