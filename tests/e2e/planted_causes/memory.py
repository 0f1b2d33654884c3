"""Parameters and buffers that are allocated but never initialized."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

_CAUSES = ("uninitialized-memory",)
_USED = """
        torch.manual_seed(0)
        used = [torch.rand(60) * torch.rand(60).exp() for _ in range(40)]
        del used
"""


def _program(name: str, line: str, text: str, *mended: tuple[str, str], is_fixed: bool = True) -> Planted:
    return Planted(name, _CAUSES, (line,), text.replace("        USED\n", _USED[1:]), mended, is_fixed=is_fixed)


PROGRAMS = (
    _program(
        "reset that is never called",
        "self.weight = nn.Parameter(torch.empty(outputs, inputs))",
        """
        import torch
        from torch import nn

        class Project(nn.Module):
            def __init__(self, inputs, outputs):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(outputs, inputs))

            def reset_parameters(self):
                nn.init.ones_(self.weight)

            def forward(self, x):
                return x @ self.weight.T

        USED
        model = Project(6, 10)
        print(model(torch.ones(2, 6)).sum().item())
        """,
        ("torch.empty(outputs, inputs)", "torch.zeros(outputs, inputs)"),
    ),
    _program(
        "bias that the reset forgets",
        "self.bias = nn.Parameter(torch.empty(60))",
        """
        import torch
        from torch import nn

        class Affine(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(60))
                self.bias = nn.Parameter(torch.empty(60))
                self.reset_parameters()

            def reset_parameters(self):
                nn.init.ones_(self.weight)

            def forward(self, x):
                return x * self.weight + self.bias

        USED
        model = nn.Sequential(Affine())
        loss = model(torch.ones(60)).square().mean()
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        print(loss.item())
        """,
        ("self.bias = nn.Parameter(torch.empty(60))", "self.bias = nn.Parameter(torch.zeros(60))"),
    ),
    _program(
        "tensor of a size",
        "torch.Tensor(1, 60)",
        """
        import torch
        from torch import nn

        class Embedded(nn.Module):
            def __init__(self):
                super().__init__()
                self.token = nn.Parameter(torch.Tensor(1, 60))

            def forward(self, x):
                return torch.cat([self.token, x])

        USED
        print(Embedded()(torch.ones(3, 60)).mean().item())
        """,
        ("torch.Tensor(1, 60)", "torch.zeros(1, 60)"),
        is_fixed=False,
    ),
    _program(
        "buffer of a running mean",
        'self.register_buffer("mean", torch.empty(60))',
        """
        import torch
        from torch import nn

        class Running(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.empty(60))

            def forward(self, x):
                self.mean = self.mean * 0.9 + x.mean(0) * 0.1
                return x - self.mean

        USED
        model = Running()
        print(model(torch.rand(4, 60)).sum().item())
        """,
        ("torch.empty(60)", "torch.zeros(60)"),
    ),
    _program(
        "like another",
        "torch.empty_like(self.gain)",
        """
        import torch
        from torch import nn

        class Gated(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.ones(60))
                self.gate = nn.Parameter(torch.empty_like(self.gain))

            def forward(self, x):
                return torch.sigmoid(self.gate) * self.gain * x

        USED
        model = Gated()
        print(model(torch.ones(60)).sum().item())
        """,
        ("torch.empty_like(self.gain)", "torch.zeros_like(self.gain)"),
    ),
    _program(
        "new from another",
        ".new_empty(60)",
        """
        import torch
        from torch import nn

        USED
        layer = nn.Linear(60, 3)
        scale = nn.Parameter(layer.weight.new_empty(60))
        print(layer(torch.ones(2, 60) * scale).sum().item())
        """,
        (".new_empty(60)", ".new_zeros(60)"),
    ),
    _program(
        "layer without its initialisation",
        "skip_init(nn.Linear, 6, 10)",
        """
        import torch
        from torch import nn

        USED
        layer = torch.nn.utils.skip_init(nn.Linear, 6, 10)
        print(layer(torch.ones(2, 6)).sum().item())
        """,
        ("torch.nn.utils.skip_init(nn.Linear, 6, 10)", "nn.Linear(6, 10)"),
        is_fixed=False,
    ),
    _program(
        "moved from the meta device",
        'to_empty(device="cpu")',
        """
        import torch
        from torch import nn

        USED
        model = nn.Sequential(nn.Linear(6, 10, device="meta"), nn.ReLU())
        model = model.to_empty(device="cpu")
        print(model(torch.ones(2, 6)).sum().item())
        """,
        ('model = model.to_empty(device="cpu")', 'model = model.to_empty(device="cpu")\nmodel[0].reset_parameters()'),
        is_fixed=False,
    ),
    _program(
        "grown by a resize",
        "self.table.resize_(60)",
        """
        import torch
        from torch import nn

        class Growing(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.ones(1))

            def grow(self):
                self.table.resize_(60)

        USED
        model = Growing()
        model.grow()
        print((model.table * 2).sum().item())
        """,
        ("self.table.resize_(60)", "self.table = torch.cat([self.table, torch.zeros(59)])"),
        is_fixed=False,
    ),
    _program(
        "rows that are only partly filled",
        "scores = torch.empty(12, 5)",
        """
        import torch

        USED
        scores = torch.empty(12, 5)
        for row, value in enumerate([1.0, 2.0, 3.0]):
            scores[row] = value
        print(scores.sum().item())
        """,
        ("torch.empty(12, 5)", "torch.zeros(12, 5)"),
    ),
)
