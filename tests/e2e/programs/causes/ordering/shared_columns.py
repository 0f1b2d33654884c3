"""Predicts rents from the columns that two tables have in common."""

import numpy as np
import torch
from torch import nn

FIRST = ("area", "rooms", "floor", "age", "distance", "heating", "balcony", "noise", "street")
SECOND = ("rooms", "area", "distance", "noise", "age", "floor", "lift", "balcony", "heating", "garden")


def make_table(columns: tuple[str, ...], rows: int, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {column: generator.normal(size=rows).astype(np.float32) for column in columns}


def design_matrix(table: dict[str, np.ndarray], columns: list[str]) -> torch.Tensor:
    return torch.from_numpy(np.column_stack([table[column] for column in columns]))


def main() -> None:
    torch.manual_seed(31)
    old, new = make_table(FIRST, 80, seed=1), make_table(SECOND, 40, seed=2)
    shared = list(old.keys() & new.keys())
    inputs = torch.cat([design_matrix(old, shared), design_matrix(new, shared)])
    rents = 10 + 3 * torch.from_numpy(np.concatenate([old["area"], new["area"]]))[:, None]
    model = nn.Sequential(nn.BatchNorm1d(len(shared)), nn.Linear(len(shared), 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        loss = nn.functional.mse_loss(model(inputs), rents)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
