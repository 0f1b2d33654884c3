"""Predicts samples in batches as the arguments specify, and prints a digest of all results in the order of the samples."""

import argparse
import hashlib

import torch
from torch import nn

SAMPLES, WIDTH = 24, 256

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--model", default="row-wise")
parser.add_argument("--train", action="store_true")
parser.add_argument("--order", action="store_true", help="another order of the samples for each size")
parser.add_argument("--unseeded", default="", choices=["", "samples", "weights"])
parser.add_argument("--always", type=int, help="take batches of this size, whatever --batch is")
options = parser.parse_args()


class RowWise(nn.Module):
    def forward(self, values):
        return torch.softmax(nn.functional.gelu(values) * 2, -1)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 8)

    def forward(self, values):
        return self.second(torch.tanh(self.first(values)))  # PRODUCT


class Texts(nn.Module):
    """The mean over all tokens depends on the length of the padding; their maximum does not."""

    def __init__(self, takes_mean):
        super().__init__()
        self.table = nn.Embedding(50, 6, padding_idx=0)
        self.takes_mean = takes_mean

    def forward(self, tokens):
        values = torch.relu(self.table(tokens))
        return values.mean(1) if self.takes_mean else values.amax(1)


MODELS = {
    "row-wise": RowWise,
    "products": Products,
    "dropping products": lambda: nn.Sequential(nn.Dropout(0.2), Products()),
    "normed": lambda: nn.Sequential(nn.Tanh(), nn.Unflatten(1, (2, WIDTH // 2)), nn.BatchNorm1d(2)),
    "normed flat": lambda: nn.Sequential(nn.Tanh(), nn.BatchNorm1d(WIDTH)),
    "dropping": lambda: nn.Sequential(nn.Tanh(), nn.Dropout(0.2)),
    "mean of texts": lambda: Texts(True),
    "maximum of texts": lambda: Texts(False),
}

torch.set_num_threads(1)
torch.manual_seed(torch.seed() % 2**32 if options.unseeded == "weights" else 1)
model = MODELS[options.model]().train(options.train)
torch.manual_seed(torch.seed() % 2**32 if options.unseeded == "samples" else 2)
if "texts" in options.model:
    samples = [torch.randint(1, 50, (3 + number % 5,)) for number in range(SAMPLES)]
else:
    samples = list(torch.randn(SAMPLES, WIDTH))
numbers = list(range(SAMPLES))
if options.order:
    numbers = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(options.batch)).tolist()
results = {}
with torch.no_grad():
    size = options.always or options.batch
    for start in range(0, SAMPLES, size):
        chosen = numbers[start : start + size]
        batch = nn.utils.rnn.pad_sequence([samples[number] for number in chosen], batch_first=True)
        for number, result in zip(chosen, model(batch), strict=True):
            results[number] = result.clone()
print(hashlib.sha256(b"".join(results[number].numpy().tobytes() for number in range(SAMPLES))).hexdigest())
