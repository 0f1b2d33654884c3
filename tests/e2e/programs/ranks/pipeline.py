"""Two ranks are the two stages of a pipeline, which send activations forward and gradients back.

torchrun --nproc-per-node 2 pipeline.py [forward|back]
"""

import sys

import torch
from planting import hand_on
from torch import distributed, nn


def train(rank: int) -> None:
    """Run one rank; nothing that uses the group remains after it returns."""
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            if rank == 0:
                activation = stage(torch.randn(8, 4))
                sent = activation.detach()
                if step == 1 and part == 1 and "forward" in sys.argv:
                    sent = hand_on(sent)  # SITE forward
                distributed.send(sent, dst=1)
                gradient = torch.empty(8, 4)
                distributed.recv(gradient, src=1)
                activation.backward(gradient)
            else:
                received = torch.empty(8, 4)
                work = distributed.irecv(received, src=0)
                work.wait()
                received.requires_grad_()
                loss = stage(received).square().mean()
                loss.backward()
                gradient = received.grad
                if step == 1 and part == 0 and "back" in sys.argv:
                    gradient = hand_on(gradient)  # SITE back
                distributed.isend(gradient, dst=0).wait()
                losses.append(loss.item())
        optimizer.step()
    if rank == 1:
        print(losses)


distributed.init_process_group("gloo")
train(distributed.get_rank())
distributed.barrier()
distributed.destroy_process_group()
