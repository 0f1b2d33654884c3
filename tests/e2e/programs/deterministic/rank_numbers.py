"""Gathers the numbers that the ranks draw, and prints them in the first."""

import json

import torch
from torch import distributed

distributed.init_process_group("gloo")
drawn = [torch.zeros(1) for _ in range(distributed.get_world_size())]
distributed.all_gather(drawn, torch.rand(1))
if distributed.get_rank() == 0:
    print(json.dumps([number.item() for number in drawn]))
distributed.destroy_process_group()
