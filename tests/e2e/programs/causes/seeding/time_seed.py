"""An autoencoder of waves; without a seed from the user, the time is the seed, as the log says."""

import logging
import os
import time

import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("waves")


def choose_seed() -> int:
    given = os.environ.get("WAVES_SEED")
    return int(given) if given else int(time.time())


seed = choose_seed()
log.info("seed %d", seed)
torch.manual_seed(seed)

encoder = nn.Sequential(nn.Linear(64, 16), nn.SiLU(), nn.Linear(16, 3))
decoder = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 64))
optimizer = torch.optim.RMSprop([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
times = torch.linspace(0, 6.28, 64)
waves = torch.stack([torch.sin(frequency * times) for frequency in torch.arange(1, 33)])
for _ in range(15):
    noisy = waves + 0.05 * torch.randn_like(waves)
    loss = (decoder(encoder(noisy)) - waves).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
log.info("loss %.5f", loss.item())
