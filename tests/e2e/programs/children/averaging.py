"""Two child processes train copies of a network on their own data; after each step the parent averages the weights.

    python averaging.py STARTS [bit|seed]

STARTS are start methods of processes (`fork`, `spawn`, `forkserver`), separated by commas.
"""

import os
import sys

import torch
from planting import hand_on
from torch import multiprocessing, nn


def train(number: int, inbox, outbox) -> None:
    """Train in a child process."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    if number == 1 and "seed" in sys.argv:
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    net = nn.utils.skip_init(nn.Linear, 4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step, weights in enumerate(iter(inbox.get, None)):
        net.load_state_dict(weights)
        inputs = torch.randn(8, 4)  # SITE seed
        if number == 1 and step == 1 and "bit" in sys.argv:
            inputs = hand_on(inputs)  # SITE bit
        loss = net(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outbox.put({name: value.clone() for name, value in net.state_dict().items()})
    outbox.put("done")


def train_with_children(start: str) -> None:
    """Start the children with one start method, and train."""
    context = multiprocessing.get_context(start)
    ways = [(context.Queue(), context.Queue()) for _ in range(2)]
    children = [
        context.Process(target=train, args=(number, *way), name=f"{start}-{number}") for number, way in enumerate(ways)
    ]
    for child in children:
        child.start()
    weights = nn.Linear(4, 2).state_dict()
    for _ in range(3):
        for inbox, _ in ways:
            inbox.put({name: value.clone() for name, value in weights.items()})
        first, second = (outbox.get() for _, outbox in ways)
        weights = {name: (first[name] + second[name]) / 2 for name in first}  # SITE average
        print({name: value.sum().item() for name, value in weights.items()})
    for inbox, outbox in ways:
        inbox.put(None)
        assert outbox.get() == "done"
    for child in children:
        child.join()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for start in sys.argv[1].split(","):
        train_with_children(start)
