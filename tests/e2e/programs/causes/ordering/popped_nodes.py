"""Colours a graph by taking nodes from the set of those that remain, then learns embeddings of the colours."""

import torch
from torch import nn

ROADS = {
    "Arlen": ["Birk", "Corda", "Dorn"],
    "Birk": ["Arlen", "Corda", "Elm"],
    "Corda": ["Arlen", "Birk", "Dorn", "Elm", "Fern"],
    "Dorn": ["Arlen", "Corda", "Fern", "Gall"],
    "Elm": ["Birk", "Corda", "Fern", "Hove"],
    "Fern": ["Corda", "Dorn", "Elm", "Gall", "Hove"],
    "Gall": ["Dorn", "Fern", "Hove"],
    "Hove": ["Elm", "Fern", "Gall"],
}


def colour(graph: dict[str, list[str]]) -> dict[str, int]:
    left, colours = set(graph), {}
    while left:
        node = left.pop()
        used = {colours[neighbour] for neighbour in graph[node] if neighbour in colours}
        colours[node] = next(number for number in range(len(graph)) if number not in used)
    return colours


torch.manual_seed(44)
colours = colour(ROADS)
nodes = torch.tensor([colours[town] for town in ROADS])
names = list(ROADS)
roads = torch.tensor([[names.index(town), names.index(other)] for town in ROADS for other in ROADS[town]])
table = nn.Embedding(len(ROADS), 6)
optimizer = torch.optim.Adam(table.parameters(), lr=0.1)
for _ in range(12):
    places = table(nodes)
    loss = torch.relu(4 - (places[roads[:, 0]] - places[roads[:, 1]]).norm(dim=1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(nodes.tolist(), table.weight.norm().item())
