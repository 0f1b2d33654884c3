"""Threads of a pool compute the branches of a network, forward and backward; the main thread sums them.

    python branches.py [bit|order|draws]

With `order` and `draws` the threads run one after the other; in every second run the first of them comes last.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from planting import hand_on, passed_before
from torch import Tensor, nn

BRANCHES = 4
RACES = bool({"order", "draws"} & {*sys.argv})
TURNS = [1, 2, 3, 0] if RACES and passed_before() % 2 else [0, 1, 2, 3]

torch.manual_seed(0)
branches = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.Tanh()) for _ in range(BRANCHES)])
optimizer = torch.optim.SGD(branches.parameters(), lr=0.1)
ended = [[threading.Event() for _ in range(BRANCHES)] for _ in range(3)]


def wait_for_turn(step: int, number: int) -> None:
    """Wait for the thread that comes before this one, and until its future is done."""
    turn = TURNS.index(number)
    if turn:
        ended[step][TURNS[turn - 1]].wait()
    time.sleep(0.1)


def outputs_of(step: int, number: int, inputs: Tensor) -> Tensor:
    """Train the branch of a thread and return its outputs."""
    if RACES:
        wait_for_turn(step, number)
    if "draws" in sys.argv and step == 1:
        noise = torch.rand(8, 4)  # SITE draws
        inputs = inputs + noise
    outputs = branches[number](inputs)
    if step == 1 and number == 2 and "bit" in sys.argv:
        outputs = hand_on(outputs)  # SITE bit
    outputs.square().mean().backward()
    ended[step][number].set()
    return outputs.detach()


with ThreadPoolExecutor(BRANCHES) as pool:
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.randn(8, 4)
        tasks = [pool.submit(outputs_of, step, number, inputs) for number in range(BRANCHES)]
        total = torch.zeros(8, 8)
        for task in as_completed(tasks) if "order" in sys.argv else tasks:
            total = 0.5 * total + task.result()  # SITE order
        optimizer.step()
        print(total.sum().item())
