"""Trains on crops that a second process prepares in parallel."""

import multiprocessing
import random

import torch
from torch import nn


def prepare(queue, images):
    for image in images:
        left, top = random.randrange(4), random.randrange(4)
        queue.put([row[left : left + 4] for row in image[top : top + 4]])


def main():
    random.seed(3)
    torch.manual_seed(3)
    images = torch.rand(6, 8, 8).tolist()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=prepare, args=(queue, images))
    process.start()
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in images:
        crop = torch.tensor(queue.get())
        loss = model(crop.flatten()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    process.join()
    print(loss.item())


if __name__ == "__main__":
    main()
