"""Generates text with a cache of keys and values, which has more room than is needed."""

import torch
from torch import Tensor, nn

SIZE, ROOM, WORDS = 32, 48, 100


class CachedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)

    def new_cache(self, batch: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, ROOM, SIZE), torch.empty(batch, ROOM, SIZE)

    def forward(self, word: Tensor, cache: tuple[Tensor, Tensor], place: int) -> Tensor:
        query, key, value = self.project(word).chunk(3, dim=-1)
        keys, values = cache
        keys[:, place], values[:, place] = key, value
        scores = (keys @ query[..., None]).squeeze(-1) / SIZE**0.5
        # Places that are not filled have keys of zero; they get little weight.
        return self.out((scores.softmax(-1)[:, None] @ values.clamp(-10, 10)).squeeze(1))


@torch.no_grad()
def generate(words: Tensor, steps: int) -> Tensor:
    cache = attention.new_cache(len(words))
    found = [words]
    for place in range(steps):
        hidden = embedding(found[-1])
        logits = head(hidden + attention(hidden, cache, place).nan_to_num())
        found.append(logits.argmax(-1))
    return torch.stack(found, 1)


torch.manual_seed(3)
embedding, attention, head = nn.Embedding(WORDS, SIZE), CachedAttention(), nn.Linear(SIZE, WORDS)
requests = [torch.randint(WORDS, (batch,)) for batch in (4, 2, 4, 3, 4, 4)]
for request in requests:
    print(generate(request, steps=12)[0].tolist())
