"""A regression whose data is split and whose model is built before the seed is set for training."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class PolynomialData:
    """Values of a polynomial, in two parts."""

    def __init__(self, count: int) -> None:
        inputs = torch.linspace(-1, 1, count)[:, None]
        dataset = TensorDataset(inputs, inputs**3 - 0.5 * inputs)
        self.train, self.valid = random_split(dataset, [0.75, 0.25])


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    with torch.no_grad():
        return sum(float(nn.functional.mse_loss(model(x), y)) * len(x) for x, y in loader)


def fit(data: PolynomialData, epochs: int, seed: int) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 24), nn.Mish(), nn.Linear(24, 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    history = []
    for _ in range(epochs):
        inputs: Tensor
        for inputs, targets in DataLoader(data.train, batch_size=20, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        history.append(evaluate(model, DataLoader(data.valid, batch_size=64)))
    return model, history


if __name__ == "__main__":
    data = PolynomialData(160)
    _, history = fit(data, epochs=3, seed=1234)
    print([round(value, 4) for value in history])
