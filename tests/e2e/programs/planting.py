"""Differences for programs to plant: they really occur, in every second run."""

import torch
from torch import Tensor


def passed_before() -> int:
    """Return how often this function was called before, in all runs in this folder."""
    with open("passed.log", "ab") as log:
        log.write(b".")
        log.flush()
        return log.tell() - 1


@torch.library.custom_op("lab::hand_on", mutates_args=())
def hand_on(tensor: Tensor) -> Tensor:
    """Return the same values, but with one bit flipped in every second run."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    if passed_before() % 2:
        result.view(-1)[:1].view(torch.uint8)[tensor.itemsize - 2] ^= 64
    return result


hand_on.register_autograd(lambda context, gradient: gradient)
