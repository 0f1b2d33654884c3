"""Classifies flowers by their measurements; the classes are read from the table."""

import csv
import io

import torch
from torch import nn

TABLE = """\
length,width,petal,species
5.1,3.5,1.4,setosa
4.9,3.0,1.4,setosa
7.0,3.2,4.7,versicolor
6.4,3.2,4.5,versicolor
6.3,3.3,6.0,virginica
5.8,2.7,5.1,virginica
4.7,3.2,1.3,setosa
5.5,2.3,4.0,versicolor
7.1,3.0,5.9,virginica
6.1,2.9,4.6,sibirica
6.0,3.1,4.4,sibirica
5.2,4.1,1.5,tectorum
5.0,3.9,1.6,tectorum
"""

torch.manual_seed(4)
rows = list(csv.DictReader(io.StringIO(TABLE)))
species = list({row["species"] for row in rows})
features = torch.tensor([[float(row[name]) for name in ("length", "width", "petal")] for row in rows])
targets = torch.tensor([species.index(row["species"]) for row in rows])
features = (features - features.mean(0)) / features.std(0)

model = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, len(species)))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features), targets)
    loss.backward()
    return loss


for _ in range(3):
    loss = optimizer.step(closure)
confusion = torch.bincount(targets * len(species) + model(features).argmax(1), minlength=len(species) ** 2)
print(loss.item(), confusion.view(len(species), -1).tolist())
