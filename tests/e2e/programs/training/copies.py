"""Copies of a model: deep copies, averages, and models saved and loaded, evaluated in inference mode.

python copies.py [average|loaded]
"""

import copy
import io
import sys

import torch
from planting import hand_on
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
teacher = copy.deepcopy(net).requires_grad_(False)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
for step in range(4):
    inputs = torch.randn(8, 4)
    with torch.no_grad():
        wanted = teacher(inputs)
    optimizer.zero_grad()
    nn.functional.mse_loss(net(inputs), wanted).backward()
    optimizer.step()
    average.update_parameters(net)
    with torch.no_grad():
        for mine, other in zip(teacher.parameters(), net.parameters(), strict=True):
            latest = other.detach()
            if step == 2 and mine is teacher[4].weight and "average" in sys.argv:
                latest = hand_on(latest)  # SITE average
            mine.lerp_(latest, 0.1)
    if step == 1:
        saved = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        saved.seek(0)
        state = torch.load(saved)
        if "loaded" in sys.argv:
            state["net"]["0.weight"] = hand_on(state["net"]["0.weight"])  # SITE loaded
        net, old = copy.deepcopy(net), optimizer
        net.load_state_dict(state["net"])
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        optimizer.load_state_dict(state["optimizer"])
with torch.inference_mode():
    print([model.eval()(torch.ones(2, 4)).sum().item() for model in (net, teacher, average)])
