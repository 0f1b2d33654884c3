"""Spreads labels over a graph: each sweep visits, in turn, all nodes whose label is not known."""

import torch
from torch import Tensor

CLASSES = 4


class Node:
    """A node with beliefs about its class."""

    def __init__(self, beliefs: Tensor) -> None:
        self.beliefs = beliefs
        self.neighbours: list[Node] = []

    def update(self) -> None:
        heard = torch.stack([neighbour.beliefs for neighbour in self.neighbours])
        self.beliefs = torch.softmax(self.beliefs + 0.5 * heard.mean(0), dim=0)


def build_graph(count: int) -> list[Node]:
    nodes = [Node(torch.rand(CLASSES)) for _ in range(count)]
    for number, node in enumerate(nodes):
        node.neighbours = [nodes[(number * 3 + 1) % count], nodes[(number + 17) % count], nodes[number - 1]]
    return nodes


class Propagation:
    def __init__(self, nodes: list[Node], known: list[Node]) -> None:
        self.open = set(nodes) - set(known)

    def sweep(self) -> None:
        for node in self.open:
            node.update()


torch.manual_seed(21)
nodes = build_graph(320)
propagation = Propagation(nodes, known=nodes[::8])
for _ in range(2):
    propagation.sweep()
print(torch.stack([node.beliefs for node in nodes]).max(1).values.mean().item())
