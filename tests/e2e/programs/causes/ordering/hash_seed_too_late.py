"""Trains a character model; the environment is set up at the top, so that nothing is left to chance."""

import os
import random

os.environ["PYTHONHASHSEED"] = "0"
random.seed(0)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

np.random.seed(0)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the hounds " * 4


class CharacterModel(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 12)
        self.cell = nn.LSTM(12, 24, batch_first=True)
        self.out = nn.Linear(24, characters)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.cell(self.embed(text))[0])


alphabet = {character: number for number, character in enumerate(set(TEXT))}
text = torch.tensor([alphabet[character] for character in TEXT])
model = CharacterModel(len(alphabet))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for start in range(0, 200, 40):
    piece = text[start : start + 41]
    loss = nn.functional.cross_entropy(model(piece[None, :-1])[0], piece[1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(loss.item())
