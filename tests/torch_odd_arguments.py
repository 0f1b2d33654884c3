"""Calls ops with unusual arguments with and without the native recorder: the results must have the same bits or the same error.

Prints the number of calls, how many of them raised an error, and in how many the recorder's own handler failed.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

os.environ["DETERMINISM_RECORDER"] = "native"
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 600


def odd_tensors(chance: random.Random) -> Iterator[torch.Tensor]:
    """Yield tensors with strides of zero, overlaps, offsets, no elements, no memory, and unusual layouts and dtypes."""
    block = torch.arange(120, dtype=torch.float32).reshape(4, 5, 6)
    yield block
    yield block.transpose(0, 2)
    yield block[:, ::2, 1:]
    yield block[1:1]
    yield torch.empty(0)
    yield torch.empty(3, 0, 2)
    yield torch.tensor(2.5)
    yield torch.ones(1).expand(4, 5, 6)
    yield block.flatten().as_strided((10, 10), (1, 1), 3)
    yield block.flatten().as_strided((4, 5), (0, 2))
    yield torch.randn(4, 4, dtype=torch.complex64).conj()
    yield torch.randn(4, 4, dtype=torch.complex64).conj().imag
    yield torch.ones(4, 4).to_sparse()
    yield torch.eye(4).to_sparse_csr()
    yield torch.quantize_per_tensor(block, 0.1, 0, torch.quint8)
    yield torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield torch.ones(4, 5, 6, device="meta")
    yield torch.ones(4, 5, 6, dtype=torch.bool)
    yield torch.arange(4)
    yield torch.ones(4, 5, 6, dtype=torch.bfloat16)
    yield torch.ones(4, 5, 6, requires_grad=True)
    yield torch.ones(2, 2).to_mkldnn() if torch.backends.mkldnn.is_available() else block
    yield torch.empty(0).set_(torch.ones(100).untyped_storage(), 0, (50,), (2,))
    with torch.inference_mode():
        yield torch.ones(3, 3)
    yield torch._efficientzerotensor((4, 5))
    yield torch.randn(chance.choice([1, 7, 33]), chance.choice([1, 5]))


SCALARS = [
    0,
    1,
    -1,
    2**62,
    1.5,
    float("nan"),
    float("inf"),
    True,
    None,
    "none",
    1j,
    [],
    [0],
    [1, 2],
    [-1],
    (),
    [0] * 70,
    torch.float64,
]


def functions() -> list[Callable[..., Any]]:
    """Return ops of many kinds, in the forms that programs call and as overloads."""
    names = [
        "add", "mul", "div", "matmul", "mm", "bmm", "cat", "stack", "sum", "mean", "max", "sort", "topk", "index_select", "gather",
        "scatter", "where", "clamp", "cumsum", "norm", "softmax", "log_softmax", "relu", "sigmoid", "conv1d", "conv2d", "bilinear",
        "nonzero", "unique", "masked_select", "split", "chunk", "unbind", "squeeze", "transpose", "reshape", "flip", "roll", "einsum",
        "bernoulli", "multinomial", "normal", "dropout", "layer_norm", "embedding", "bincount", "histc", "quantile", "svd", "qr",
        "inverse", "fft_fft", "stft", "_foreach_add", "_foreach_mul_", "_foreach_norm", "zeros_like", "empty_like", "clone", "equal",
        "allclose", "bucketize", "searchsorted", "isin", "cdist", "kron", "tril", "diag", "trace", "addmm", "baddbmm", "lerp", "take",
        "put", "index_put", "index_add", "index_fill", "scatter_add", "repeat_interleave", "combinations", "cartesian_prod", "real",
    ]  # fmt: skip
    found = [getattr(torch, name) for name in names if hasattr(torch, name)]
    methods = [
        "add_", "mul_", "fill_", "zero_", "copy_", "resize_", "set_", "index_put_", "masked_fill_", "scatter_", "squeeze_", "t_",
        "item", "tolist", "to", "contiguous", "view", "as_strided", "expand", "backward", "numpy", "clone", "random_", "uniform_",
        "bernoulli_", "unfold", "to_dense", "to_sparse", "detach_", "requires_grad_", "sub_", "exp_", "clamp_", "transpose_", "resize_as_",
    ]  # fmt: skip
    found += [getattr(torch.Tensor, name) for name in methods]
    overloads = [
        "aten.add.out",
        "aten.cat.out",
        "aten.sort.values",
        "aten.max.dim_max",
        "aten._foreach_add_.List",
        "aten.index.Tensor",
    ]
    for path in overloads:
        found_op: Any = torch.ops
        for part in path.split("."):
            found_op = getattr(found_op, part)
        found.append(found_op)
    return found


def call(seed: int) -> Any:
    """Make one call with arguments chosen by the seed."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    tensors = list(odd_tensors(chance))

    def argument(depth: int = 0) -> Any:
        kind = chance.random()
        if kind < 0.35:
            return chance.choice(fitting)
        if kind < 0.5:
            return chance.choice(tensors)
        if kind < 0.6:
            return chance.choice([0, 1, 2, 0.5])
        if kind < 0.75 and depth < 2:
            return [argument(depth + 1) for _ in range(chance.choice([0, 1, 2, 3, 40]))]
        return chance.choice(SCALARS)

    first = chance.choice(tensors)
    fitting = [
        tensor for tensor in tensors if not tensor.is_nested and not first.is_nested and tensor.shape == first.shape
    ] or [first]
    arguments = [first, *(argument() for _ in range(chance.choice([0, 0, 1, 1, 1, 2, 3])))]
    function = chance.choice(functions())
    if chance.random() < 0.1:
        arguments[0] = [chance.choice(tensors) for _ in range(chance.choice([0, 2, 300]))]
    try:
        made = function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]
    has_values = not any(word in str(function) for word in ("empty", "resize", "set_"))
    return [described(one, has_values=has_values) for one in (made if isinstance(made, (list, tuple)) else [made])]


def described(made: Any, *, has_values: bool) -> Any:
    """Describe a result, with its values if it has any; without them for ops that may leave memory uninitialized."""
    if not isinstance(made, torch.Tensor):
        return repr(made) if isinstance(made, (bool, int, float, complex, str, type(None))) else type(made).__name__
    facts = [str(made.dtype), str(made.layout), made.is_nested or tuple(made.shape), made.requires_grad]
    if (
        has_values
        and made.layout is torch.strided
        and not (made.is_nested or made.is_meta or made.is_quantized or made._is_zerotensor())
    ):
        facts.append(str(made.detach().flatten()[:200].tolist()))
    return facts


def main() -> None:
    """See the module."""
    import determinism
    from determinism.trace.opening import open_trace

    warnings.simplefilter("ignore")
    plain = [call(seed) for seed in range(CALLS)]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        with determinism.record(trace) as session:
            assert session.recorder.name == "native"
            recorded = [call(seed) for seed in range(CALLS)]
        (process,) = open_trace(trace).processes
        failed = [spot for spot in process.description["blind_spots"] if spot["id"] == "handler-failed"]
    for spot in failed:
        print(spot, file=sys.stderr)
    for seed, (one, other) in enumerate(zip(plain, recorded, strict=True)):
        if one != other:
            sys.exit(f"call {seed} gave {str(one)[:300]} without recording and {str(other)[:300]} with it")
    print(CALLS, sum(isinstance(one, tuple) for one in plain), len(failed))


if __name__ == "__main__":
    main()
