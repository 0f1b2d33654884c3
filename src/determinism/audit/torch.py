"""The ops of PyTorch that are audited, and the process that measures them: `-m determinism.audit.torch`."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from determinism.audit.harness import (
    FEW,
    FLOATS,
    MANY,
    Auditor,
    Call,
    Case,
    Input,
    Repeatable,
    Request,
    calling,
    leaf,
    normal,
    whole,
)
from determinism.digest import digest_many
from determinism.frameworks.torch.patches.catalogue import apply as replace_ops
from determinism.frameworks.torch.tensor_bytes import digest_tensor

# A case: one way to call an op, on inputs that are most likely to make it vary.


class Inputs:
    """Makes the inputs of one case, the same each time."""

    def __init__(self, device: str, dtype: str, seed: int) -> None:
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._generator = torch.Generator().manual_seed(seed)
        self.leaves: list[torch.Tensor] = []
        """The tensors to differentiate with respect to."""

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Values of very different magnitudes, so that their sum depends on the order; not differentiated."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        scales = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return (values * scales.exp()).to(self.device, dtype or self.dtype)

    def leaf(self, *shape: int, layout: torch.memory_format | None = None) -> torch.Tensor:
        """Like `normal`, but differentiated."""
        made = self.normal(*shape)
        if layout is not None:
            made = made.contiguous(memory_format=layout)
        if made.is_floating_point():
            self.leaves.append(made.requires_grad_())
        return made

    def whole(self, high: int, *shape: int) -> torch.Tensor:
        """Integers below `high`: as indices of many contributions to few elements, they collide."""
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def unit(self, *shape: int) -> torch.Tensor:
        """Values between 0 and 1."""
        return torch.rand(shape, generator=self._generator, dtype=torch.float64).to(self.device, self.dtype)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Random values to begin a backward pass with."""
        return self.normal(*tensor.shape, dtype=tensor.dtype)


# Cases from PyTorch's own op database: small inputs, but for every op, including those that nobody thought of.

_MOST_SAMPLES = 3
_DRAWS = 1234
"""Seed set before each call, since many ops draw random numbers."""
_LEFT_OUT = ("empty", "new_empty", "resize_", "resize_as_", "bernoulli", "multinomial")
"""Prefixes of the names of ops that return uninitialized memory, or that the deterministic mode does not cover."""


def database() -> list[Any]:
    """PyTorch's op database.

    Raises:
        ImportError: A package that PyTorch's test suite needs is missing.
    """
    # PyTorch's own test modules forbid setting flags for the rest of the process, which is not wanted here.
    allowing_flags = getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)
    with warnings.catch_warnings(), allowing_flags():
        # It warns about packages that only other parts of the test suite need.
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def database_cases() -> Iterator[Case]:
    """A case for each of the first samples of each op, in float32.

    Raises:
        ImportError: A package that PyTorch's test suite needs is missing.
    """
    for info in database():
        if torch.float32 not in info.dtypes or info.name.startswith(_LEFT_OUT):
            continue
        variant = f"{info.variant_test_name}, " if info.variant_test_name else ""
        for number in range(_MOST_SAMPLES):
            name = f"{variant}sample {number} of PyTorch's op database"
            yield Case(f"torch.{info.name}", name, partial(_make, info, number))


def _make(info: Any, number: int, inputs: Inputs) -> Call:
    _seed()
    samples = info.sample_inputs(str(inputs.device), inputs.dtype, requires_grad=info.supports_autograd)
    sample = next(islice(samples, number, None), None)
    if sample is None:
        raise LookupError(f"{info.name} has no sample {number}")
    given = (sample.input, sample.args, sample.kwargs)
    inputs.leaves += [v for v in tree_leaves(given) if isinstance(v, torch.Tensor) and v.requires_grad]

    def call() -> Any:
        _seed()
        # Ops may write into their inputs.
        first, args, kwargs = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, given)
        return info(first, *args, **kwargs)

    return call


def _seed() -> None:
    torch.manual_seed(_DRAWS)
    random.seed(_DRAWS)
    np.random.seed(_DRAWS)


_SIZES = {1: (4096,), 2: (96, 96), 3: (24, 24, 24)}
"""Lengths of images, by the number of dimensions."""
_LAYOUTS: dict[str, torch.memory_format | None] = {"": None, ", channels_last": torch.channels_last}


def layer_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield from _convolutions()
    yield from _pools()
    yield from _normalisations()
    yield from _losses()
    yield Case("torch.nn.LSTM", "2 layers", _lstm)
    attention = partial(functional.scaled_dot_product_attention, is_causal=True)
    make = calling(attention, *[leaf(4, 4, 256, 32)] * 3)
    yield Case("torch.nn.functional.scaled_dot_product_attention", "causal", make, FLOATS)
    yield Case("torch.nn.Dropout", "seeded before each call", calling(_dropout, leaf(1 << 18)))


def _images(dims: int, layout: torch.memory_format | None = None) -> Input:
    return lambda inputs: inputs.leaf(4, 8, *_SIZES[dims], layout=layout)


def _unit(*shape: int) -> Input:
    return lambda inputs: inputs.unit(*shape)


def _convolutions() -> Iterator[Case]:
    for dims in (1, 2, 3):
        for transposed in (False, True):
            name = f"torch.nn.Conv{'Transpose' if transposed else ''}{dims}d"
            for words, layout in _LAYOUTS.items() if dims == 2 else [("", None)]:
                dtypes = ("float32", "bfloat16") if not transposed else ("float32",)
                make = _convolution(dims, layout, transposed=transposed)
                yield Case(name, f"kernel 3, stride 2{words}", make, dtypes)


def _convolution(dims: int, layout: torch.memory_format | None, *, transposed: bool) -> Callable[[Inputs], Call]:
    run = getattr(functional, f"conv{'_transpose' if transposed else ''}{dims}d")
    return calling(partial(run, stride=2), _images(dims, layout), leaf(8, 8, *(3,) * dims), leaf(8))


_POOLS = (("MaxPool", 2, (3, 1)), ("MaxPool", 3, (3, 1)), ("AvgPool", 3, (3, 1)), ("AdaptiveAvgPool", 2, (5,)),
          ("AdaptiveAvgPool", 3, (5,)), ("AdaptiveMaxPool", 2, (5,)))  # fmt: skip
"""Kinds of pools, their number of dimensions, and their arguments after the images."""


def _pools() -> Iterator[Case]:
    for kind, dims, size in _POOLS:
        run = getattr(functional, f"{_snake(kind)}{dims}d")
        yield Case(f"torch.nn.{kind}{dims}d", "overlapping windows", calling(partial(_pool, run, size), _images(dims)))
    for dims in (2, 3):
        yield Case(f"torch.nn.FractionalMaxPool{dims}d", "overlapping windows", _fractional(dims))
    for dims in (1, 2, 3):
        yield Case(f"torch.nn.MaxUnpool{dims}d", "equal indices", _unpool(dims))


def _snake(kind: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).strip("_")


def _pool(pool: Callable[..., Any], size: tuple[int, ...], images: torch.Tensor) -> Any:
    return pool(images, *size)


def _fractional(dims: int) -> Callable[[Inputs], Call]:
    run = getattr(functional, f"fractional_max_pool{dims}d")
    return calling(
        lambda x, samples: run(x, 2, output_ratio=(0.7,) * dims, _random_samples=samples),
        _images(dims),
        _unit(4, 8, dims),
    )


def _unpool(dims: int) -> Callable[[Inputs], Call]:
    run = getattr(functional, f"max_unpool{dims}d")
    shape = (4, 8, *(size // 2 for size in _SIZES[dims]))
    return calling(lambda x, indices: run(x, indices, 2), leaf(*shape), whole(16, *shape))


def _normalisations() -> Iterator[Case]:
    for words, layout in _LAYOUTS.items():
        make = calling(lambda x: nn.BatchNorm2d(8).to(x)(x), _images(2, layout))
        yield Case("torch.nn.BatchNorm2d", f"training{words}", make)
    yield Case("torch.nn.GroupNorm", "2 groups", calling(lambda x: functional.group_norm(x, 2), _images(2)))
    make = calling(lambda x: functional.layer_norm(x, x.shape[-1:]), _images(2))
    yield Case("torch.nn.LayerNorm", "over the last dimension", make, FLOATS)


def _losses() -> Iterator[Case]:
    nll = calling(functional.nll_loss, leaf(4, 8, 96, 96), whole(8, 4, 96, 96))
    yield Case("torch.nn.NLLLoss", "images", nll)
    cross_entropy = calling(functional.cross_entropy, leaf(8192, 64), whole(64, 8192), _unit(64))
    yield Case("torch.nn.CrossEntropyLoss", "weighted classes", cross_entropy)
    yield Case("torch.nn.CTCLoss", "repeated labels", calling(_ctc, leaf(64, 32, 16), whole(3, 32, 12)))


def _ctc(scores: torch.Tensor, labels: torch.Tensor) -> Any:
    return functional.ctc_loss(scores.log_softmax(2), labels + 1, torch.full((32,), 64), torch.full((32,), 12))


def _lstm(inputs: Inputs) -> Call:
    torch.manual_seed(0)
    layer = nn.LSTM(64, 64, 2).to(inputs.device, inputs.dtype)
    inputs.leaves += layer.parameters()
    values = inputs.leaf(32, 16, 64)
    return lambda: layer(values)


def _dropout(values: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return functional.dropout(values)


# Products, decompositions, solvers and Fourier transforms.

_SIZE = 192


def linear_algebra_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield Case("torch.matmul", "square matrices", _pair(torch.matmul, _SIZE, _SIZE), FLOATS)
    yield Case("torch.bmm", "dense", _pair(torch.bmm, 4, _SIZE, _SIZE))
    sparse_bmm = calling(torch.bmm, lambda inputs: _sparse(inputs, 4), leaf(4, _SIZE, _SIZE))
    yield Case("torch.bmm", "sparse and dense", sparse_bmm)
    yield Case("torch.sparse.mm", "sparse and dense", calling(torch.sparse.mm, _sparse, leaf(_SIZE, _SIZE)))
    csr_mm = calling(torch.sparse.mm, lambda inputs: _sparse(inputs).to_sparse_csr(), normal(_SIZE, _SIZE))
    yield Case("torch.sparse.mm", "sparse in CSR and dense", csr_mm)
    linalg, narrow = torch.linalg, _SIZE // 2
    lstsq = _of_system(lambda a, b: linalg.lstsq(a.detach(), b).solution, narrow)
    yield Case("torch.linalg.lstsq", "gelsy, the default on the CPU", lstsq)
    yield Case("torch.linalg.solve", "square", _of_system(linalg.solve, narrow))
    yield Case("torch.linalg.qr", "square", _of_system(lambda a, b: linalg.qr(a), narrow))
    yield Case("torch.linalg.svdvals", "square", _of_system(lambda a, b: linalg.svdvals(a), narrow))
    yield Case("torch.linalg.eigh", "symmetric", _of_system(lambda a, b: linalg.eigh(a + a.mT), narrow))
    yield Case("torch.fft.fft", "rows", _of_system(lambda a, b: torch.fft.fft(a), _SIZE))


def _pair(run: Callable[[torch.Tensor, torch.Tensor], Any], *shape: int) -> Callable[[Inputs], Call]:
    return calling(run, leaf(*shape), leaf(*shape))


def _of_system(run: Callable[[torch.Tensor, torch.Tensor], Any], size: int) -> Callable[[Inputs], Call]:
    return calling(run, leaf(size, size), leaf(size, 8))


def _sparse(inputs: Inputs, *batch: int) -> torch.Tensor:
    dense = inputs.normal(*batch, _SIZE, _SIZE)
    return (dense * (inputs.unit(*batch, _SIZE, _SIZE) < 0.2)).to_sparse()


# Runs a case forward and backward, and digests its results.


class _Differentiated:
    """Runs a case under autograd."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self._inputs = inputs
        self._call = case.make(inputs)
        self._roots: list[torch.Tensor] = []
        self._upstream: list[torch.Tensor] = []

    def forward(self) -> bytes:
        made = _tensors(self._call())
        self._roots = [tensor for tensor in made if tensor.requires_grad]
        return _digest(made)

    def backward(self) -> bytes | None:
        if not self._roots or not self._inputs.leaves:
            return None
        self._upstream = self._upstream or [self._inputs.like(root) for root in self._roots]
        found = torch.autograd.grad(self._roots, self._inputs.leaves, self._upstream, allow_unused=True)
        return _digest([gradient for gradient in found if gradient is not None])


def _tensors(made: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(made) if isinstance(value, torch.Tensor)]


def _digest(tensors: list[torch.Tensor]) -> bytes:
    return digest_many([digest_tensor(tensor.detach()) for tensor in tensors])


# Ops that read images between their elements or past their edges: gradients of many elements go to one.

_MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}


def sampling_cases() -> Iterator[Case]:
    """All cases of this family."""
    name = "torch.nn.functional.interpolate"
    for dims, modes in _MODES.items():
        for mode in ("nearest", *modes):
            yield Case(name, f"{mode}, {dims}d, 3 times as large", _interpolate(mode, dims))
    for mode in ("bilinear", "nearest", "bicubic"):
        yield Case("torch.nn.functional.grid_sample", f"{mode}, equal places", _grid_sample(mode))
    for dims in (1, 2, 3):
        for kind, mode in (("Reflection", "reflect"), ("Replication", "replicate")):
            yield Case(f"torch.nn.{kind}Pad{dims}d", "3 elements", _padded(mode, dims))
        yield Case("torch.nn.functional.pad", f"circular, {dims}d", _padded("circular", dims))


def _interpolate(mode: str, dims: int) -> Callable[[Inputs], Call]:
    return calling(lambda x: functional.interpolate(x[..., :16], scale_factor=3, mode=mode), _images(dims))


def _padded(mode: str, dims: int) -> Callable[[Inputs], Call]:
    return calling(lambda x: functional.pad(x, (3,) * 2 * dims, mode), _images(dims))


def _grid_sample(mode: str) -> Callable[[Inputs], Call]:
    return calling(
        lambda x, grid: functional.grid_sample(x, grid / 4, mode, align_corners=False),
        leaf(4, 8, 16, 16),
        _unit(4, 128, 128, 2),
    )


# Ops that write or add by index: many contributions go to few elements.

ROWS, WIDTH = 1 << 13, 64


Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
"""Takes the target, the index and the values."""


def writing_cases() -> Iterator[Case]:
    """All cases of this family."""
    yield from _writes()
    yield from _scatters()
    yield from _reads()
    yield from _embeddings()


def _flat(run: Run) -> Callable[[Inputs], Call]:
    """A call with a target of few elements, an index with many, and as many values."""
    return calling(lambda t, i, v: run(t.clone(), i, v), leaf(FEW), whole(FEW, MANY), leaf(MANY))


def _rows(run: Run) -> Callable[[Inputs], Call]:
    """A call with a target of few rows, an index of many of them, and as many rows of values."""
    return calling(lambda t, i, v: run(t.clone(), i, v), leaf(FEW, WIDTH), whole(FEW, ROWS), leaf(ROWS, WIDTH))


def _writes() -> Iterator[Case]:
    put, add, copy, reduce = (
        f"torch.Tensor.{name}" for name in ("index_put_", "index_add_", "index_copy_", "index_reduce_")
    )
    yield Case(
        put, "accumulate=True, equal indices", _flat(lambda t, i, v: t.index_put((i,), v, accumulate=True)), FLOATS
    )
    yield Case(put, "accumulate=False, equal indices", _flat(lambda t, i, v: t.index_put((i,), v)))
    yield Case(
        "torch.Tensor.put_", "accumulate=True, equal indices", _flat(lambda t, i, v: t.put(i, v, accumulate=True))
    )
    yield Case("torch.Tensor.put_", "accumulate=False, equal indices", _flat(lambda t, i, v: t.put(i, v)))
    yield Case(add, "rows, equal indices", _rows(lambda t, i, v: t.index_add(0, i, v)), FLOATS)
    yield Case(add, "elements, equal indices", _flat(lambda t, i, v: t.index_add(0, i, v)))
    yield Case(copy, "rows, equal indices", _rows(lambda t, i, v: t.index_copy(0, i, v)))
    for how in ("prod", "mean", "amax"):
        yield Case(reduce, f"{how}, equal indices", _rows(_index_reduce(how)))
    masked_fill = calling(
        lambda t, v, mask: t.masked_fill(mask, v), leaf(MANY), leaf(), lambda inputs: inputs.whole(2, MANY).bool()
    )
    yield Case("torch.masked_fill", "gradient of the value", masked_fill)


def _index_reduce(how: str) -> Run:
    return lambda t, i, v: t.index_reduce(0, i, v, how)


def _scatter_reduce(how: str) -> Run:
    return lambda t, i, v: t.scatter_reduce(0, _wide(i), v, how)


def _wide(index: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand(-1, WIDTH)


def _scatters() -> Iterator[Case]:
    add, scatter, reduce = (f"torch.Tensor.{name}" for name in ("scatter_add_", "scatter_", "scatter_reduce_"))
    yield Case(add, "rows, equal indices", _rows(lambda t, i, v: t.scatter_add(0, _wide(i), v)), FLOATS)
    yield Case(add, "elements, equal indices", _flat(lambda t, i, v: t.scatter_add(0, i, v)))
    yield Case(scatter, "src is a tensor, equal indices", _rows(lambda t, i, v: t.scatter(0, _wide(i), v)))
    yield Case(
        scatter,
        "reduce='add', equal indices",
        _rows(lambda t, i, v: t.detach().scatter(0, _wide(i), v.detach(), reduce="add")),
    )
    for how in ("sum", "prod", "mean", "amax"):
        yield Case(reduce, f"{how}, equal indices", _rows(_scatter_reduce(how)))


def _reads() -> Iterator[Case]:
    yield Case("torch.Tensor.__getitem__", "a list of equal indices", _flat(lambda t, i, v: t[i]), FLOATS)
    yield Case("torch.take", "equal indices", _flat(lambda t, i, v: torch.take(t, i)))
    yield Case("torch.index_select", "rows, equal indices", _rows(lambda t, i, v: t.index_select(0, i)))
    yield Case("torch.gather", "rows, equal indices", _rows(lambda t, i, v: t.gather(0, _wide(i))))
    yield Case("torch.gather", "elements, equal indices", _flat(lambda t, i, v: t.gather(0, i)))
    repeated = calling(lambda t, counts: t.repeat_interleave(counts, 0), leaf(FEW, WIDTH), whole(ROWS // FEW, FEW))
    yield Case("torch.repeat_interleave", "rows", repeated)


def _embeddings() -> Iterator[Case]:
    functional = torch.nn.functional
    yield Case("torch.nn.Embedding", "equal indices", _rows(lambda t, i, v: functional.embedding(i, t)), FLOATS)
    yield Case(
        "torch.nn.Embedding",
        "scale_grad_by_freq=True, equal indices",
        _rows(lambda t, i, v: functional.embedding(i, t, scale_grad_by_freq=True)),
    )
    for mode in ("sum", "mean", "max"):
        yield Case("torch.nn.EmbeddingBag", f"mode={mode!r}, equal indices", _bags(mode))


def _bags(mode: str) -> Callable[[Inputs], Call]:
    return _rows(lambda t, i, v: torch.nn.functional.embedding_bag(i.view(-1, 32), t, mode=mode))


# Ops that sum, count, select or sort many values.

_ROWS = 512


def reducing_cases() -> Iterator[Case]:
    """All cases of this family."""
    for name in ("sum", "mean", "prod", "var", "norm", "logsumexp"):
        yield Case(
            f"torch.{name}", "all elements", _of_flat(_reduction(name)), FLOATS if name == "sum" else ("float32",)
        )
        yield Case(f"torch.{name}", "columns", _of_matrix(_reduction(name)))
    yield Case("torch.dot", "two vectors", _pair(torch.dot, MANY))
    yield Case("torch.cumsum", "all elements", _of_flat(lambda x: x.cumsum(0)), FLOATS)
    yield Case("torch.cumsum", "rows", _of_matrix(lambda x, dim: x.cumsum(1)))
    yield Case("torch.softmax", "rows", _of_matrix(lambda x, dim: x.softmax(1)))
    weighted = calling(torch.bincount, whole(FEW, MANY), normal(MANY))
    yield Case("torch.bincount", "with weights, equal values", weighted)
    unweighted = calling(torch.bincount, whole(FEW, MANY))
    yield Case("torch.bincount", "without weights, equal values", unweighted, ("int64",))
    yield Case("torch.histc", "equal values", _of_flat(lambda x: x.detach().histc(FEW)))
    yield Case("torch.median", "with indices, equal values", calling(lambda x: x.median(1), _ties))
    yield Case("torch.kthvalue", "equal values", calling(lambda x: x.kthvalue(7, 1), _ties))
    yield Case("torch.mode", "equal values", calling(lambda x: x.mode(1), _ties))
    yield Case("torch.sort", "equal values", calling(lambda x: x.sort(1), _ties))
    yield Case("torch.topk", "equal values", calling(lambda x: x.topk(7, 1), _ties))
    unique = partial(torch.unique, return_inverse=True, return_counts=True)
    yield Case("torch.unique", "with inverse and counts", calling(unique, whole(FEW, MANY)))


def _reduction(name: str) -> Callable[..., torch.Tensor]:
    if name == "logsumexp":
        return lambda x, dim=0: torch.logsumexp(x, dim)
    reduction: Callable[..., torch.Tensor] = getattr(torch, name)
    return lambda x, dim=None: reduction(x) if dim is None else reduction(x, dim=dim)


def _of_flat(run: Callable[[torch.Tensor], Any]) -> Callable[[Inputs], Call]:
    return calling(run, leaf(MANY))


def _of_matrix(run: Callable[[torch.Tensor, int], Any]) -> Callable[[Inputs], Call]:
    return calling(lambda x: run(x, 0), leaf(_ROWS, MANY // _ROWS))


def _ties(inputs: Inputs) -> torch.Tensor:
    values = inputs.whole(FEW, _ROWS, MANY // _ROWS).to(inputs.dtype).requires_grad_()
    inputs.leaves.append(values)
    return values


# The auditor for PyTorch.


class TorchAuditor(Auditor):
    """Measures ops of PyTorch under autograd."""

    version = torch.__version__
    errors = (Exception,)
    """Samples of the op database fail in all kinds of ways if a device or a library is missing."""
    families = (writing_cases, reducing_cases, layer_cases, sampling_cases, linear_algebra_cases)

    def prepare(self, request: Request) -> None:
        """Limit the threads, and replace ops if requested."""
        # Some ops warn that they are in beta or deprecated, which does not matter here.
        warnings.simplefilter("ignore")
        if request["threads"] is not None:
            torch.set_num_threads(request["threads"])
        # Replacements last as long as this reference.
        self._replaced = replace_ops() if request["patched"] else None

    def accelerators(self) -> list[str]:
        """The names of the GPUs."""
        return [torch.cuda.get_device_name()] if torch.cuda.is_available() else []

    def threads(self) -> int:
        """The number of threads that share the work of one op."""
        return torch.get_num_threads()

    def cases(self, request: Request) -> Iterable[Case]:
        """The project's cases, or PyTorch's own samples."""
        return database_cases() if request["database"] else self.all_cases()

    @contextmanager
    def running(self, device: str, *, deterministic_mode: bool) -> Iterator[None]:
        """Run with `torch.use_deterministic_algorithms(True)` or without it; inputs are on the device already."""
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic_mode)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)

    def repeatable(self, case: Case, device: str, dtype: str, seed: int) -> Repeatable | None:
        """A case on one set of inputs."""
        try:
            return _Differentiated(case, Inputs(device, dtype, seed))
        except LookupError:
            # The op database has fewer samples of the op.
            return None


AUDITOR = TorchAuditor()

if __name__ == "__main__":
    raise SystemExit(AUDITOR.main())
