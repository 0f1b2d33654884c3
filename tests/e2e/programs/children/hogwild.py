"""Two processes train one network in shared memory, taking turns after each step; the parent saves it.

    python hogwild.py [race]

With `race`, one of them overtakes the other at step 2 in every second run.
"""

import sys

import torch
from planting import passed_before
from torch import multiprocessing, nn

STEPS = 4


def train(number: int, net: nn.Module, turns: list, ended: dict) -> None:
    """Train in a child process."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        turn = turns.index((step, number))
        if turn:
            ended[turns[turn - 1]].wait()
        inputs = torch.randn(16, 32)
        loss = (net(inputs) - inputs.sum(1, keepdim=True)).square().mean()  # SITE race
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ended[step, number].set()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).share_memory()
    turns = [(step, number) for step in range(STEPS) for number in range(2)]
    if "race" in sys.argv and passed_before() % 2:
        turns[4:6] = turns[5], turns[4]
    context = multiprocessing.get_context("fork")
    ended = {turn: context.Event() for turn in turns}
    children = [
        context.Process(target=train, args=(number, net, turns, ended), name=f"half-{number}") for number in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    torch.save(net.state_dict(), "net.pt")
    print(sum(parameter.sum().item() for parameter in net.parameters()))
