"""A generator and a discriminator, each with its own optimizer; the optimizer that steps first counts the steps.

python rivals.py [bit|noise]
"""

import os
import sys

import torch
from planting import hand_on
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
judge = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.LeakyReLU(0.2), nn.Linear(8, 1))
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
right, wrong = torch.ones(8, 1), torch.zeros(8, 1)
loss_of = nn.functional.binary_cross_entropy_with_logits
if "noise" in sys.argv:
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
for step in range(4):
    real, fake = torch.linspace(-1, 1, 32).view(8, 4), generator(torch.randn(8, 2))  # SITE noise
    of_judge.zero_grad()
    (loss_of(judge(real), right) + loss_of(judge(fake.detach()), wrong)).backward()
    of_judge.step()
    if step % 2:
        score = judge(fake)
        if step == 3 and "bit" in sys.argv:
            score = hand_on(score)  # SITE bit
        of_generator.zero_grad()
        loss_of(score, right).backward()
        of_generator.step()
    print([sum(value.sum().item() for value in net.parameters()) for net in (generator, judge)])
