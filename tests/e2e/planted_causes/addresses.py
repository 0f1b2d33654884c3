"""Iterated sets of objects that are hashed by their address."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

_CAUSES = ("address-order",)

PROGRAMS = (
    Planted(
        "layers in a set",
        _CAUSES,
        ("for layer in layers:",),
        """
        import torch
        from torch import nn

        torch.manual_seed(0)
        layers = {nn.Linear(6, 6) for _ in range(40)}
        x = torch.rand(3, 6)
        for layer in layers:
            x = torch.tanh(layer(x))
        print(x.sum().item())
        """,
        (("{nn.Linear(6, 6) for _ in range(40)}", "[nn.Linear(6, 6) for _ in range(40)]"),),
    ),
    Planted(
        "trainable parameters",
        _CAUSES,
        ("for parameter in trainable:",),
        """
        import torch
        from torch import nn

        torch.manual_seed(1)
        model = nn.Sequential(*[nn.Linear(5, 5) for _ in range(30)])
        frozen = set(model[0].parameters())
        trainable = set(model.parameters()) - frozen
        model(torch.ones(2, 5)).sum().backward()
        total = torch.zeros(())
        for parameter in trainable:
            total = total * 0.9 + parameter.grad.norm()
        print(total.item())
        """,
        (("for parameter in trainable:", "for parameter in [p for p in model.parameters() if p in trainable]:"),),
    ),
    Planted(
        "nodes of a graph",
        _CAUSES,
        ("for node in level:",),
        """
        import torch

        class Node:
            def __init__(self, value, children=()):
                self.value = value
                self.children = children

        torch.manual_seed(2)
        leaves = [Node(torch.rand(3)) for _ in range(60)]
        root = Node(torch.zeros(3), [Node(torch.rand(3), leaves[i::3]) for i in range(3)])
        state, level = torch.zeros(3), {root}
        while level:
            following = set()
            for node in level:
                state = torch.sin(state + node.value)
                following.update(node.children)
            level = following
        print(state.tolist())
        """,
        (
            ("level = torch.zeros(3), {root}", "level = torch.zeros(3), {root: 0}"),
            ("following = set()", "following = {}"),
            ("following.update(node.children)", "following.update(dict.fromkeys(node.children))"),
        ),
        is_fixed=False,
    ),
    Planted(
        "listeners",
        _CAUSES,
        ("for listener in self.listeners:",),
        """
        import torch

        class Events:
            def __init__(self):
                self.listeners = set()

            def on(self, listener):
                self.listeners.add(listener)

            def fire(self, value):
                for listener in self.listeners:
                    value = listener(value)
                return value

        def scale(factor):
            return lambda value: torch.cos(value * factor)

        events = Events()
        for number in range(600):
            events.on(scale(1 + number / 600))
        print(events.fire(torch.linspace(0, 1, 4)).tolist())
        """,
        (
            ("self.listeners = set()", "self.listeners = {}"),
            ("self.listeners.add(listener)", "self.listeners[listener] = None"),
        ),
        # Functions cannot be sorted, so no change to this line can fix the order.
        is_fixed=False,
    ),
    Planted(
        "weak set",
        _CAUSES,
        ("for block in Block.made:",),
        """
        import weakref
        import torch
        from torch import nn

        class Block(nn.Module):
            made = weakref.WeakSet()

            def __init__(self, number):
                super().__init__()
                self.weight = nn.Parameter(torch.full((3,), 1.0 + number))
                Block.made.add(self)

        blocks = [Block(number) for number in range(40)]
        x = torch.ones(3)
        for block in Block.made:
            x = torch.sin(x * block.weight)
        print(x.tolist())
        """,
        (("for block in Block.made:", "for block in blocks:"),),
        is_fixed=False,
    ),
    Planted(
        "tensors in a frozen set",
        _CAUSES,
        ("torch.stack([*noises])", "noises = frozenset("),
        """
        import torch

        torch.manual_seed(3)
        noises = frozenset(torch.randn(4) for _ in range(40))
        weights = torch.linspace(0, 1, 40)
        mixed = (torch.stack([*noises]) * weights[:, None]).sum(0)
        print(mixed.tolist())
        """,
        (("frozenset(torch.randn(4) for _ in range(40))", "tuple(torch.randn(4) for _ in range(40))"),),
    ),
    Planted(
        "popped tasks",
        _CAUSES,
        ("task = waiting.pop()",),
        """
        import torch

        class Task:
            def __init__(self, rate):
                self.rate = rate

        waiting = {Task(1 + number / 7) for number in range(60)}
        state = torch.linspace(0, 1, 5)
        while waiting:
            task = waiting.pop()
            state = torch.sin(state * task.rate)
        print(state.tolist())
        """,
        (
            (
                "waiting = {Task(1 + number / 7) for number in range(60)}",
                "waiting = [Task(1 + number / 7) for number in range(60)]",
            ),
        ),
        is_fixed=False,
    ),
    Planted(
        "classes in a set",
        _CAUSES,
        ("list(kinds)", "enumerate(list(kinds))"),
        """
        import torch

        kinds = {type(f"Op{number}", (), {"power": 1 + number / 9}) for number in range(50)}
        table = torch.zeros(50)
        for place, kind in enumerate(list(kinds)):
            table[place] = kind.power
        print((table * torch.linspace(0, 1, 50)).sum().item())
        """,
        (
            (
                'kinds = {type(f"Op{number}", (), {"power": 1 + number / 9}) for number in range(50)}',
                'kinds = [type(f"Op{number}", (), {"power": 1 + number / 9}) for number in range(50)]',
            ),
        ),
    ),
    Planted(
        "buffers of experts",
        _CAUSES,
        ("in self.active]",),
        """
        import torch
        from torch import nn

        class Mixture(nn.Module):
            def __init__(self, count):
                super().__init__()
                self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
                self.active = {expert for expert in self.experts if expert.weight.sum() > -9}

            def forward(self, x):
                outputs = [expert(x) for expert in self.active]
                return torch.stack(outputs).cumsum(0)[10]

        torch.manual_seed(4)
        model = Mixture(40)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = model(torch.ones(2, 4)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(loss.item())
        """,
        (
            (
                "{expert for expert in self.experts if expert.weight.sum() > -9}",
                "[expert for expert in self.experts if expert.weight.sum() > -9]",
            ),
        ),
    ),
    Planted(
        "sampled users",
        _CAUSES,
        ("random.sample(list(users), 8)", "users = set("),
        """
        import random
        import torch

        class User:
            def __init__(self, number):
                self.embedding = torch.full((2,), float(number))

        random.seed(0)
        users = set(map(User, range(60)))
        batch = torch.stack([user.embedding for user in random.sample(list(users), 8)])
        print(batch.sum(0).tolist())
        """,
        (("users = set(map(User, range(60)))", "users = list(map(User, range(60)))"),),
    ),
)
