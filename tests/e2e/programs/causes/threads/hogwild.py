"""Two processes train one model in shared memory without waiting for each other."""

import torch
import torch.multiprocessing as multiprocessing
from torch import nn


def train(rank: int, model: nn.Module, steps: int) -> None:
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(64, 10)
    targets = inputs.sum(1, keepdim=True)
    for step in range(steps):
        part = slice(step % 4 * 16, step % 4 * 16 + 16)
        loss = nn.functional.mse_loss(model(inputs[part]), targets[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    context = multiprocessing.get_context("fork")
    model = nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 1))
    model.share_memory()
    workers = [context.Process(target=train, args=(rank, model, 40)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(sum(float(parameter.sum()) for parameter in model.parameters()))
