"""Snapshots of tensors: how they share memory, their layouts, gradients and graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from determinism.errors import StateError
from determinism.session.snapshot import Snapshot


def bits(value: Any) -> Any:
    """A value with its tensors and arrays as bytes."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return {key: bits(item) for key, item in value.items()} if isinstance(value, dict) else value


def twice(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The results of two calls; the state is restored before the second and after it."""
    snapshot = Snapshot.take(function, args, {})
    first = bits(function(*args))
    snapshot.restore()
    second = bits(function(*args))
    snapshot.restore()
    return first, second


def test_views_share_memory_before_and_after_restoring() -> None:
    base = torch.arange(12.0)
    view, transposed = base[3:7], base.view(3, 4).t()

    def run(view: torch.Tensor) -> Any:
        view += 1
        transposed.mul_(2)
        base[0] = float("nan")
        return base.clone()

    first, second = twice(run, view)
    assert first == second
    assert base.tolist() == list(range(12))
    view[0] = 100
    assert base[3] == 100 and transposed[3, 0] == 100


def test_memory_beyond_a_view_is_restored() -> None:
    storage_owner = torch.arange(6.0)
    view = storage_owner[:2]
    pointer = storage_owner.data_ptr()
    del storage_owner

    def run(view: torch.Tensor) -> Any:
        whole = torch.empty(0).set_(view.untyped_storage())
        whole.add_(1)
        return whole.clone()

    first, second = twice(run, view)
    assert first == second and view.data_ptr() == pointer


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.resize_(100).fill_(3),
        lambda tensor: setattr(tensor, "data", torch.ones(7)),
        lambda tensor: setattr(tensor, "data", tensor.data.double()),
        lambda tensor: tensor.set_(torch.ones(5)),
        lambda tensor: tensor.t_(),
        lambda tensor: tensor.untyped_storage().resize_(0),
        lambda tensor: tensor.untyped_storage().resize_(1000),
        lambda tensor: tensor.share_memory_().zero_(),
        lambda tensor: tensor.requires_grad_(),
        lambda tensor: tensor.mul_(torch.ones(1, requires_grad=True)),
        lambda tensor: tensor.requires_grad_().register_hook(print),
        lambda tensor: setattr(tensor, "grad", torch.ones(2, 3)),
        lambda tensor: setattr(tensor, "extra", [1]),
    ],
)
def test_every_change_of_a_tensor_is_undone(change: Callable[[torch.Tensor], Any]) -> None:
    tensor = torch.tensor([[0.0, 1, 2], [3, 4, 5]])
    other = tensor[1]
    snapshot = Snapshot.take(change, (tensor,), {})
    for _ in range(2):
        change(tensor)
        snapshot.restore()
        assert tensor.dtype == torch.float32 and tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert not tensor.requires_grad and tensor.is_leaf and tensor.grad is None and not vars(tensor)
        assert not tensor._backward_hooks
        assert other.data_ptr() == tensor[1].data_ptr()


def test_a_graph_that_was_changed_cannot_be_restored() -> None:
    weight = torch.ones(2, requires_grad=True)
    product = weight * 2

    def run(product: torch.Tensor) -> None:
        product.mul_(3)

    snapshot = Snapshot.take(run, (product,), {})
    run(product)
    with pytest.raises(StateError, match=r"^args\[0\] cannot be restored .* a graph cannot be copied") as caught:
        snapshot.restore()
    assert caught.value.identifier == "state-unrestored"


def test_parameters_and_inference_tensors_are_restored_without_autograd() -> None:
    parameter = nn.Parameter(torch.ones(3))
    with torch.inference_mode():
        inference = torch.ones(3)
    version = parameter._version

    def run() -> Any:
        with torch.no_grad():
            parameter.data.mul_(2)
        with torch.inference_mode():
            inference.add_(1)
        return parameter.sum() + inference.sum()

    first, second = twice(run)
    assert first == second
    assert parameter._version == version and parameter.is_leaf and parameter.requires_grad
    assert parameter.tolist() == inference.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8, torch.int64]
)
def test_tensors_of_every_dtype_are_restored(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    before = tensor.clone()

    def run() -> None:
        tensor.fill_(1)

    twice(run)
    assert torch.equal(tensor, before)


def test_sparse_conjugate_meta_and_quantized_tensors_are_restored() -> None:
    sparse = torch.eye(3).to_sparse()
    rows = torch.eye(3).to_sparse_csr()
    conjugate = torch.tensor([1 + 2j]).conj()
    meta = torch.empty(3, device="meta")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)

    def run() -> Any:
        with torch.no_grad():
            sparse.mul_(2)
            rows.values().mul_(2)
            conjugate.mul_(2j)
            meta.add_(1)
        return [sparse.to_dense(), rows.to_dense(), conjugate.resolve_conj(), quantized.int_repr()]

    first, second = twice(run)
    assert first == second
    assert torch.equal(sparse.to_dense(), torch.eye(3)) and torch.equal(rows.to_dense(), torch.eye(3))
    assert conjugate.is_conj() and conjugate.item() == 1 - 2j


def test_sparse_gradients_are_restored() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(embedding.parameters()))

    def run() -> Any:
        embedding(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
        return [embedding.weight.detach(), embedding.weight.grad.to_dense()]

    run()
    first, second = twice(run)
    assert first == second


def test_dispatch_modes_do_not_see_the_copying() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    with Watch():
        Snapshot.take(print, (net, optimizer), {}).restore()
    assert seen == []
