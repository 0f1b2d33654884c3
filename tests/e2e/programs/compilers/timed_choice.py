"""Multiplies matrices with the faster of two similar kernels, which Inductor times in each run: the run has its own cache.

python timed_choice.py [flips | keeps]
"""

import ctypes
import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()

import torch
from torch._inductor import select_algorithm
from torch._inductor.ir import FixedLayout
from torch._inductor.lowering import register_lowering

C = ctypes.CDLL(None)
word = ctypes.c_uint32()
# From the C library: it simulates other work on the machine while kernels are timed.
C.getrandom(ctypes.byref(word), 4, 0)
is_whole_slow = bool(word.value % 2) if sys.argv[1] == "flips" else False


def whole(a, b, *, out=None):
    C.usleep(20_000 if is_whole_slow else 0)
    return torch.mm(a, b, out=out)  # SITE whole


def halves(a, b, *, out=None):
    C.usleep(0 if is_whole_slow else 20_000)
    half = a.shape[1] // 2
    result = a[:, :half] @ b[:half] + a[:, half:] @ b[half:]
    return result if out is None else out.copy_(result)


CHOICES = [
    select_algorithm.ExternKernelChoice(whole, name="whole_mm"),
    select_algorithm.ExternKernelChoice(halves, name="halves_mm"),
]


@torch.library.custom_op("planted::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@product.register_fake
def _(a, b):
    return a.new_empty(a.shape[0], b.shape[1])


@register_lowering(torch.ops.planted.product.default, type_promotion_kind=None)
def lowered(a, b):
    layout = FixedLayout(a.get_device(), a.get_dtype(), [a.get_size()[0], b.get_size()[1]])
    bound = [choice.bind((a, b), layout) for choice in CHOICES]
    made = select_algorithm.autotune_select_algorithm("product", bound, [a, b], layout)
    return made[0] if isinstance(made, tuple) else made


torch.set_num_threads(1)
torch.manual_seed(0)
weight = torch.randn(64, 64)
compiled = torch.compile(lambda x: torch.ops.planted.product(x, weight))
x = torch.randn(64, 64)
for _ in range(3):
    x = torch.tanh(compiled(x))
print(x.double().sum().item())
