"""Snapshots of what PyTorch keeps: parameters, gradients, optimizer state, generators, and how tensors share memory."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from determinism.errors import StateError
from determinism.session.snapshot import Snapshot

steps = 0
losses: list[torch.Tensor] = []


class Net(nn.Module):
    """Every kind of state that a module has: parameters, buffers, random layers, plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
        self.calls = 0
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global steps
        steps += 1
        self.calls += 1
        self.last_input = x
        hidden = self.body[0](x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.body(x)


def bits(value: Any) -> Any:
    """A value with tensors and arrays as bytes."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return {key: bits(item) for key, item in value.items()} if isinstance(value, dict) else value


def twice(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The results of two calls, put back before the second and after it."""
    snapshot = Snapshot.take(function, args, {})
    first = bits(function(*args))
    snapshot.restore()
    second = bits(function(*args))
    snapshot.restore()
    return first, second


def make_training() -> tuple[Net, torch.optim.Optimizer, Any]:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def test_training_repeats_bit_for_bit_and_only_with_restore() -> None:
    net, optimizer, scheduler = make_training()
    array = np.zeros(3)
    total = 0.0

    def train(rounds: int) -> Any:
        nonlocal total
        for _ in range(rounds):
            x = torch.randn(16, 4) + random.random() + np.random.rand()
            loss = net(x).pow(2).mean() + net.body[0].weight.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
            array[...] += loss.item()
            total += loss.item()
        return [net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), list(losses), array, total, steps]

    train(1)
    parameters = [id(parameter) for parameter in net.parameters()]
    before = copy.deepcopy(bits([net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), steps, net.calls]))
    snapshot = Snapshot.take(train, (3,), {})
    first = bits(train(3))
    without = bits(train(3))
    snapshot.restore()
    second = bits(train(3))
    assert first == second
    assert first != without
    snapshot.restore()
    after = bits([net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), steps, net.calls])
    assert before == after
    assert parameters == [id(parameter) for parameter in net.parameters()]
    assert set(optimizer.state) == set(net.parameters()) and len(losses) == 1


@pytest.mark.parametrize("missing", ["first step", "gradients"])
def test_state_that_comes_into_being_is_removed(missing: str) -> None:
    net, optimizer, scheduler = make_training()
    if missing == "gradients":
        net(torch.ones(2, 4)).sum().backward()
        gradients = [parameter.grad for parameter in net.parameters()]

    def train(net: Net, optimizer: Any) -> Any:
        net(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return net.state_dict()

    first, second = twice(train, net, optimizer)
    assert first == second and not optimizer.state
    if missing == "gradients":
        pairs = zip(net.parameters(), gradients, strict=True)
        assert all(parameter.grad is gradient for parameter, gradient in pairs)
    else:
        assert all(parameter.grad is None for parameter in net.parameters())


def test_views_share_memory_before_and_after() -> None:
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


def test_memory_beyond_a_view_is_put_back() -> None:
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
def test_whatever_happens_to_a_tensor_is_undone(change: Callable[[torch.Tensor], Any]) -> None:
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


def test_a_graph_that_was_changed_cannot_be_put_back() -> None:
    weight = torch.ones(2, requires_grad=True)
    product = weight * 2

    def run(product: torch.Tensor) -> None:
        product.mul_(3)

    snapshot = Snapshot.take(run, (product,), {})
    run(product)
    with pytest.raises(StateError, match=r"^args\[0\] cannot be put back .* a graph cannot be copied") as caught:
        snapshot.restore()
    assert caught.value.identifier == "state-unrestored"


def test_parameters_leaves_and_inference_tensors_are_written_past_autograd() -> None:
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8, torch.int64])
def test_every_dtype(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    before = tensor.clone()

    def run() -> None:
        tensor.fill_(1)

    twice(run)
    assert torch.equal(tensor, before)


def test_sparse_conjugate_meta_and_quantized_tensors() -> None:
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


def test_sparse_gradients() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(embedding.parameters()))

    def run() -> Any:
        embedding(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
        return [embedding.weight.detach(), embedding.weight.grad.to_dense()]

    run()
    first, second = twice(run)
    assert first == second


def test_generators() -> None:
    own = torch.Generator().manual_seed(5)

    def run() -> Any:
        return [torch.rand(3), torch.rand(3, generator=own)]

    first, second = twice(run)
    assert first == second
    assert bits(run()) == first, "put back after the last call"
    assert bits(run()) != first


def test_recurrent_attention_and_norm_layers() -> None:
    modules = nn.ModuleList([nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 2), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))])
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.1, momentum=0.9)

    def run() -> Any:
        x = torch.randn(3, 2, 4)
        loss = modules[0](x)[0].sum() + modules[1](x).sum() + modules[2](x).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return modules.state_dict()

    first, second = twice(run)
    assert first == second


def test_a_user_function_inside_a_decorator_of_the_framework() -> None:
    seen = [0]

    @torch.no_grad()
    def run() -> Any:
        seen[0] += 1
        return seen[0], torch.rand(1)

    first, second = twice(run)
    assert first == second and seen == [0]


def test_a_compiled_module_can_be_copied() -> None:
    net = Net()
    compiled = torch.compile(net, backend="eager")

    def run() -> Any:
        return [compiled(torch.randn(4, 4)), net.calls]

    first, second = twice(run)
    assert first == second and net.calls == 0


def test_a_scaler_a_hook_and_a_loss_module() -> None:
    net = nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters())
    outputs: list[torch.Tensor] = []

    def run() -> Any:
        net.register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(net(torch.randn(4, 2)), torch.randint(2, (4,)))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return [net.state_dict(), outputs, len(net._forward_hooks), scaler.get_scale()]

    first, second = twice(run)
    assert first == second and not net._forward_hooks and outputs == []


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.tensor([index + random.random(), self.asked])


def test_a_data_loader_is_walked() -> None:
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(Items(), batch_size=3, shuffle=True, generator=generator)

    def run() -> Any:
        return [batch for batch in loader]

    first, second = twice(run)
    assert first == second
    assert bits(run()) == first and bits(run()) != first


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_of_a_data_loader_is_refused(workers: int) -> None:
    batches = iter(torch.utils.data.DataLoader(Items(), num_workers=workers))

    def run() -> Any:
        return next(batches)

    with pytest.raises(StateError, match=r"^closure\['batches'\] is of type .*DataLoaderIter, whose position"):
        Snapshot.take(run, (), {})


def test_what_a_module_holds_is_refused_by_its_path() -> None:
    net = Net()
    net.guard = threading.Lock()
    with pytest.raises(StateError, match=r"^args\[0\]\.guard is of type _thread.lock"):
        Snapshot.take(print, (net,), {})


def test_watching_modes_do_not_see_the_copying() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    net, optimizer, _ = make_training()
    with Watch():
        Snapshot.take(print, (net, optimizer), {}).restore()
    assert seen == []
