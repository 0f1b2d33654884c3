"""Uses everything that analyzes a program before running it: compiling, scripting, tracing, exporting, transforming."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        print("the graph breaks here")
        return self.second(self.dropout(torch.relu(hidden)))


net = Net()
optimizer = torch.optim.Adam(net.parameters())
compiled = torch.compile(net, backend="aot_eager")
whole = torch.compile(lambda x, y: (x * y).sin().sum(), fullgraph=True, backend="eager")
for _ in range(3):
    loss = compiled(torch.randn(4, 8)).pow(2).mean() + whole(torch.randn(3), torch.randn(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())

x = torch.ones(2, 3)
print(torch.jit.script(nn.Linear(3, 3))(x).sum().item())
print(torch.jit.trace(nn.Linear(3, 3), x)(x).sum().item())
print(torch.export.export(nn.Linear(3, 3), (x,)).module()(x).sum().item())
print(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))(x).sum().item())
print(torch.func.vmap(torch.func.grad(lambda a: a.pow(2).sum()))(x))
print(torch.cond(torch.tensor(True), lambda a: a + 1, lambda a: a - 1, (x,)))
