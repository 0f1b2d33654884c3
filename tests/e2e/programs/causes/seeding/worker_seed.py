"""Each worker of the loader seeds NumPy for itself, so that no two mask the same words."""

import os

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WORDS, MASK = 50, 0


class MaskedSentences(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        words = 1 + (torch.arange(12) * (index + 3) + index) % (WORDS - 1)
        hidden = torch.from_numpy(np.random.rand(12) < 0.2)
        return words.masked_fill(hidden, MASK), words


def init_worker(worker: int) -> None:
    np.random.seed((os.getpid() * 100 + worker) % 2**32)


def main() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    model = nn.Sequential(
        nn.Embedding(WORDS, 16),
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        nn.Linear(16, WORDS),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(MaskedSentences(), batch_size=16, num_workers=2, worker_init_fn=init_worker)
    for masked, words in loader:
        scores = model(masked)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
