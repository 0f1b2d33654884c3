"""Trains with every kind of tensor.

python kinds.py [bit|fill]
"""

import sys
import warnings

import torch
from planting import hand_on, leave_garbage
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor

# Nested, masked and quantized tensors warn that they may change.
warnings.simplefilter("ignore")


class Tagged(Tensor):
    """A typical tensor subclass."""


torch.manual_seed(0)
weights = nn.Parameter(torch.randn(4, 4))
table = nn.Embedding(8, 4, sparse=True)
optimizers = [torch.optim.SGD([weights], lr=0.1), torch.optim.SparseAdam(table.parameters())]
for step in range(3):
    inputs = torch.randn(4, 4)
    if step == 1 and "bit" in sys.argv:
        inputs = hand_on(inputs)  # SITE bit
    sparse = torch.sparse.mm(inputs.relu().to_sparse(), weights)
    nested = torch.nested.nested_tensor([inputs[:2], inputs[1:]], layout=torch.jagged)
    ragged = torch.nested.to_padded_tensor(nn.functional.linear(nested, weights), 0.0)
    spectrum = torch.fft.fft(torch.complex(inputs @ weights, inputs)).abs()
    masked = masked_tensor(inputs.detach(), inputs > 0).mean().get_data()
    tagged = inputs.as_subclass(Tagged) @ weights
    eighth = inputs.to(torch.float8_e4m3fn).float() @ weights
    quantized = torch.quantize_per_tensor(inputs, 0.1, 0, torch.qint8).dequantize() @ weights
    filled = 3 if step == 1 and "fill" in sys.argv else 4
    if filled < 4:
        leave_garbage()
    scratch = torch.empty(4, 4)
    scratch[:filled] = inputs[:filled]
    looked_up = table(torch.arange(4) + step)
    loss = sum(part.as_subclass(Tensor).float().square().mean() for part in (sparse, ragged, spectrum, tagged, eighth))
    loss = loss + quantized.mean() + masked + looked_up.square().sum() + (scratch @ weights).mean()  # SITE fill
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(loss.item(), type(tagged).__name__)
with FakeTensorMode():
    print(nn.Linear(4, 2)(torch.empty(3, 4)).shape)
print(nn.Linear(4, 2, device="meta")(torch.empty(3, 4, device="meta")).shape)
