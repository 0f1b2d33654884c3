"""Train a linear classifier on noisy digits; the noise is drawn with NumPy."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def augment(batch):
    noise = np.random.normal(0, 0.1, size=batch.shape).astype(np.float32)
    keep = np.random.rand(*batch.shape) > 0.05
    return (batch + noise) * keep


def main():
    torch.manual_seed(0)
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    labels = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for at in range(0, len(images), 128):
            batch = torch.from_numpy(augment(images[at : at + 128]))
            loss = nn.functional.cross_entropy(model(batch), labels[at : at + 128])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
