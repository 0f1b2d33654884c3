"""Deterministic training compares as the same: optimizers, layers, losses, and what is done around a step."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from determinism.types import Verdict
from tests.torch_runs import check_deterministic

PROGRAMS: list[Any] = []


def program(function: Callable[..., Any], *arguments: Any, name: str = "") -> Callable[..., Any]:
    PROGRAMS.append(pytest.param(lambda: function(*arguments), id=name or function.__name__))
    return function


def train(net: nn.Module, batches: list[Any], loss_of: Callable[..., Tensor], optimizer: Any = None) -> list[Any]:
    """A few steps; gives losses and everything that the modules hold."""
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [value for group in optimizer.state.values() for value in group.values()]
    return [torch.tensor(losses), net.state_dict(), [parameter.grad for parameter in net.parameters()], state]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(count)]


def optimize(make: Callable[[Iterator[nn.Parameter]], Any]) -> Any:
    net = mlp()
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y), make(net.parameters()))


for name, options in {
    "plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "for loop": {"foreach": False},
    "maximize": {"maximize": True, "foreach": True}, "differentiable off, amsgrad": {"amsgrad": True},
    "weight decay": {"weight_decay": 0.1, "foreach": True}, "tensor rate": {"lr": torch.tensor(0.01), "foreach": False},
}.items():  # fmt: skip
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        program(optimize, lambda p, kind=kind, options=options: kind(p, **options), name=f"{kind.__name__} {name}")
for name, options in {"plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}.items():
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, **options}
    program(optimize, lambda p, options=options: torch.optim.SGD(p, **options), name=f"SGD {name}")
for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam,
             torch.optim.RAdam, torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor):  # fmt: skip
    program(optimize, kind, name=kind.__name__)


@program
def lbfgs_with_closure() -> Any:
    net, (x, y) = mlp().eval(), batches(1)[0]
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(2)], net.state_dict()


@program
def sparse_gradients() -> Any:
    torch.manual_seed(0)
    table = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    ids = [(torch.randint(20, (5,)),) for _ in range(3)]
    return train(table, ids, lambda x: table(x).pow(2).sum(), optimizer)


@program
def embedding_bag() -> Any:
    torch.manual_seed(0)
    table = nn.EmbeddingBag(20, 4, mode="mean")
    head = nn.Linear(4, 1)
    net = nn.ModuleList([table, head])
    ids = [(torch.randint(20, (9,)), torch.tensor([0, 4, 6])) for _ in range(3)]
    return train(net, ids, lambda x, offsets: head(table(x, offsets)).pow(2).mean())


@program
def batch_norm_with_running_statistics() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 1))
    trained = train(net, [(torch.randn(8, 6),) for _ in range(3)], lambda x: net(x).pow(2).mean())
    net.eval()
    return trained, net(torch.ones(2, 6))


def recurrent(kind: type, **options: Any) -> Any:
    torch.manual_seed(0)
    net = nn.ModuleDict({"rnn": kind(4, 8, batch_first=True, **options), "head": nn.Linear(8 * (1 + options.get("bidirectional", False)), 1)})
    data = [(torch.randn(3, 5, 4),) for _ in range(3)]
    return train(net, data, lambda x: net["head"](net["rnn"](x)[0]).pow(2).mean())


program(recurrent, nn.LSTM, name="LSTM")
program(recurrent, nn.GRU, name="GRU")
program(recurrent, nn.RNN, name="RNN")
program(lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.2), name="deep LSTM")


@program
def packed_sequences() -> Any:
    torch.manual_seed(0)
    rnn = nn.LSTM(4, 8)
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 4) for n in (5, 3, 2)])
    return train(rnn, [(packed,)] * 2, lambda x: nn.utils.rnn.pad_packed_sequence(rnn(x)[0])[0].pow(2).sum())


@program
def lstm_outside_of_training() -> Any:
    torch.manual_seed(0)
    rnn = nn.LSTM(4, 8)
    with torch.no_grad():
        out, (hidden, cell) = rnn(torch.randn(3, 2, 4))
    return out, hidden, cell


@program
def attention() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    own = nn.MultiheadAttention(8, 2, batch_first=True)
    net = nn.ModuleList([layer, own])
    data = [(torch.randn(2, 5, 8),) for _ in range(2)]
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    trained = train(net, data, lambda x: own(*[layer(x, src_key_padding_mask=mask)] * 3, need_weights=False)[0].pow(2).mean())
    net.eval()
    with torch.no_grad():
        return trained, layer(data[0][0], src_key_padding_mask=mask), own(*[data[0][0]] * 3)


@program
def scaled_dot_product_attention() -> Any:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 16, 8, requires_grad=True) for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    masked = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(16, 16).tril().bool(), dropout_p=0.1)
    return q.grad, k.grad, v.grad, masked


@program
def convolutions_and_pooling() -> Any:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), nn.ConvTranspose1d(4, 2, 3), nn.AvgPool1d(2), nn.AdaptiveMaxPool1d(2))
    two = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(2), nn.Upsample(scale_factor=2))
    three = nn.Sequential(nn.Conv3d(2, 4, 3, dilation=1), nn.MaxPool3d(2), nn.AvgPool3d(1), nn.Dropout3d(0.5), nn.Flatten())
    net = nn.ModuleList([one, two, three])
    data = [(torch.randn(2, 2, 12), torch.randn(2, 2, 8, 8), torch.randn(2, 2, 6, 6, 6)) for _ in range(2)]
    return train(net, data, lambda a, b, c: one(a).sum() + two(b).pow(2).sum() + three(c).pow(2).sum())


@program
def losses() -> Any:
    torch.manual_seed(0)
    x = torch.randn(6, 2, 5, requires_grad=True)
    target = torch.randint(1, 5, (2, 3))
    log = x.log_softmax(2)
    total = F.ctc_loss(log, target, torch.tensor([6, 5]), torch.tensor([3, 2]))
    total = total + F.kl_div(log, x.softmax(2), reduction="batchmean") + F.smooth_l1_loss(x, torch.zeros_like(x))
    total = total + F.binary_cross_entropy_with_logits(x, torch.ones_like(x)) + F.nll_loss(log[0], target[:, 0])
    total = total + F.triplet_margin_loss(x[0], x[1], x[2]) + F.cosine_embedding_loss(x[0], x[1], torch.tensor([1, -1]))
    total.backward()
    return total, x.grad


@program
def clipping_accumulation_and_schedules() -> Any:
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    norms = []
    for number, (x, y) in enumerate(batches(4)):
        (F.cross_entropy(net(x), y) / 2).backward()
        if number % 2:
            norms += [nn.utils.clip_grad_norm_(net.parameters(), 0.1), nn.utils.get_total_norm([p.grad for p in net.parameters()])]
            nn.utils.clip_grad_value_(net.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=number == 1)
            for schedule in schedules:
                schedule.step()
    return norms, net.state_dict(), torch.tensor(schedules[0].get_last_lr())


@program
def scaler_and_autocast() -> Any:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    for number, (x, y) in enumerate(batches()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss * float("inf") if number == 1 else loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return net.state_dict(), torch.tensor(scaler.get_scale())


@program
def checkpointing() -> Any:
    net = mlp()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        hidden = checkpoint(net[:3], x, use_reentrant=False)
        return F.cross_entropy(checkpoint(net[3], hidden, use_reentrant=True), y)

    return train(net, batches(), loss_of)


@program
def functional_transforms() -> Any:
    net = mlp().eval()
    x, y = batches(1)[0]
    parameters = dict(net.named_parameters())

    def loss_of(parameters: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, parameters, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(parameters, x, y)
    return each, torch.func.jacrev(torch.sin)(x[0]), torch.func.jvp(torch.cos, (x[0],), (x[1],)), torch.func.hessian(lambda a: a.pow(3).sum())(x[0])


@program
def double_backward() -> Any:
    torch.manual_seed(0)
    x = torch.randn(4, requires_grad=True)
    (slope,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    return slope, x.grad


@program
def averaged_copy_of_a_model() -> Any:
    net = mlp()
    ema = copy.deepcopy(net)
    swa = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches():
        train(net, [(x, y)], lambda x, y: F.cross_entropy(net(x), y), optimizer)
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), net.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        swa.update_parameters(net)
    return ema.state_dict(), swa.state_dict()


@program
def initialisation_that_is_loaded_over() -> Any:
    state = mlp().state_dict()
    torch.seed()
    net, other, third = (nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)) for _ in range(3))
    skipped = nn.utils.skip_init(nn.Linear, 6, 16)
    torch.manual_seed(1)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    net.load_state_dict(torch.load(file))
    other.load_state_dict(state, assign=True)
    with torch.no_grad():
        for mine, theirs in zip(third.parameters(), state.values(), strict=True):
            mine.copy_(theirs)
        for parameter in skipped.parameters():
            parameter.fill_(0.1)
    return [train(n, batches(), lambda x, y, n=n: F.cross_entropy(n(x), y)) for n in (net, other, third)], skipped(torch.ones(6))


@program
def saved_and_loaded_in_a_temporary_folder() -> Any:
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, batches(2), lambda x, y: F.cross_entropy(net(x), y), optimizer)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "folder": folder}, file)
        held = torch.load(file)
        mapped = torch.load(file, mmap=True)["net"]["0.weight"].sum()
    net.load_state_dict(held["net"])
    optimizer.load_state_dict(held["optimizer"])
    return mapped, train(net, batches(2), lambda x, y: F.cross_entropy(net(x), y), optimizer)


@program
def data_loader_in_this_process() -> Any:
    net = mlp()
    data = TensorDataset(torch.randn(20, 6), torch.randint(3, (20,)))
    own = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    shared = DataLoader([{"x": x, "y": int(y), "name": f"row {i}"} for i, (x, y) in enumerate(data)], 8, shuffle=True)
    first = train(net, list(own), lambda x, y: F.cross_entropy(net(x), y))
    second = train(net, [(b["x"], b["y"]) for b in shared], lambda x, y: F.cross_entropy(net(x), y))
    return first, second


@program
def hooks() -> Any:
    net, seen = mlp(), []
    net[0].register_forward_hook(lambda module, inputs, output: output * 2)
    net[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    net[3].register_full_backward_hook(lambda module, given, made: (given[0] * 0.5,))
    net[3].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    net[0].bias.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.norm()))
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y)), seen


@program
def parametrizations() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    prune.l1_unstructured(net[1], "bias", 0.5)
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", PROGRAMS)
def test_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0
