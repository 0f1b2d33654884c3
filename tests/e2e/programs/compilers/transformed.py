"""Programs that are inspected before they run: transforms, exported and scripted modules, branches, `flex_attention`.

python transformed.py [bit]
"""

import sys
import warnings

import torch
from planting import hand_on
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# PyTorch warns that uncompiled `flex_attention` is slow.
warnings.simplefilter("ignore")
torch.manual_seed(0)
encoder = nn.Linear(8, 8)
head = torch.export.export(nn.Linear(8, 8), (torch.ones(2, 8),)).module()
scale = torch.jit.script(nn.PReLU())
optimizer = torch.optim.SGD([*encoder.parameters(), *scale.parameters()], lr=0.1)
mask = create_block_mask(lambda batch, head, query, key: query >= key, None, None, 8, 8, device="cpu")


def loss_of(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """The loss of one sequence."""
    hidden = torch.func.functional_call(encoder, parameters, (inputs,))
    return scale(hidden).square().mean()


for step in range(2):
    inputs = torch.randn(2, 8, 8)
    if step == 1 and "bit" in sys.argv:
        inputs = hand_on(inputs)  # SITE
    each = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(dict(encoder.named_parameters()), inputs)
    hidden = encoder(inputs)
    # It has no backward pass on the CPU.
    heads = hidden.detach().view(2, 1, 8, 8)
    attended = flex_attention(heads, heads, heads, lambda score, b, h, q, k: score + q - k, block_mask=mask)
    chosen = torch.cond(attended.mean() > 0, lambda x: x.sin(), lambda x: x.cos(), (hidden,))
    optimizer.zero_grad()
    (chosen.square().mean() + head(inputs[0, :2]).sum() + scale(hidden + attended[:, 0]).sum()).backward()
    optimizer.step()
    print(torch.stack([gradient.sum() for gradient in each.values()]).tolist(), chosen.sum().item())
