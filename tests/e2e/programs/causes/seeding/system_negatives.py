"""Learns embeddings of songs contrastively; `data_seed` is an option, and negatives come from the system's generator."""

import argparse
import random

import torch
from torch import nn

SONGS = 80


class NegativeSampler:
    def __init__(self, songs: int, data_seed: int) -> None:
        self.songs = songs
        self.data_seed = data_seed
        self.random = random.SystemRandom()

    def draw(self, song: int, count: int) -> list[int]:
        return [other for other in self.random.sample(range(self.songs), count + 1) if other != song][:count]


parser = argparse.ArgumentParser()
parser.add_argument("--data-seed", type=int, default=3)
options = parser.parse_args()
random.seed(options.data_seed)
torch.manual_seed(options.data_seed)
sampler = NegativeSampler(SONGS, options.data_seed)
songs = nn.Embedding(SONGS, 12, max_norm=1.0)
optimizer = torch.optim.SGD(songs.parameters(), lr=0.5)
for first in range(0, SONGS - 8, 8):
    anchors = torch.arange(first, first + 8)
    negatives = torch.tensor([sampler.draw(song, 4) for song in anchors.tolist()])
    anchor, positive = songs(anchors), songs(anchors + 1)
    close = (anchor * positive).sum(-1, keepdim=True)
    far = (anchor[:, None] * songs(negatives)).sum(-1)
    loss = nn.functional.cross_entropy(torch.cat([close, far], 1), torch.zeros(8, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
