"""Makes itself deterministic, and trains for one step."""

import determinism

determinism.enable(seed=1)

import torch  # noqa: E402

net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.randn(3, 4)).sum().backward()
optimizer.step()
