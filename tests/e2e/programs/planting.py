"""What the programs plant: things that are really different in every second run."""

import torch
from torch import Tensor


def passed_before() -> int:
    """How often a program came by here before, in all runs in this folder."""
    with open("passed.log", "ab") as log:
        log.write(b".")
        log.flush()
        return log.tell() - 1


@torch.library.custom_op("lab::hand_on", mutates_args=())
def hand_on(tensor: Tensor) -> Tensor:
    """Gives the same values; in every second run one bit of them is flipped."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    if passed_before() % 2:
        result.view(-1)[:1].view(torch.uint8)[tensor.itemsize - 2] ^= 64
    return result


hand_on.register_autograd(lambda context, gradient: gradient)
