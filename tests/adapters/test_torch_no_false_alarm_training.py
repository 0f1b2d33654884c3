"""Deterministic training compares as the same: layers, losses, and ways to differentiate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from determinism.types import Verdict
from tests.thorough import in_turns
from tests.torch_runs import check_deterministic
from tests.torch_training import batches, mlp, train

PROGRAMS: list[Any] = []


def program(function: Callable[..., Any], *arguments: Any, name: str = "") -> Callable[..., Any]:
    PROGRAMS.append(pytest.param(lambda: function(*arguments), id=name or function.__name__))
    return function


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
    net = nn.ModuleDict(
        {
            "rnn": kind(4, 8, batch_first=True, **options),
            "head": nn.Linear(8 * (1 + options.get("bidirectional", False)), 1),
        }
    )
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
    trained = train(
        net, data, lambda x: own(*[layer(x, src_key_padding_mask=mask)] * 3, need_weights=False)[0].pow(2).mean()
    )
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
    one = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), nn.ConvTranspose1d(4, 2, 3), nn.AvgPool1d(2), nn.AdaptiveMaxPool1d(2)
    )
    two = nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(2),
        nn.Upsample(scale_factor=2),
    )
    three = nn.Sequential(
        nn.Conv3d(2, 4, 3, dilation=1), nn.MaxPool3d(2), nn.AvgPool3d(1), nn.Dropout3d(0.5), nn.Flatten()
    )
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
    return (
        each,
        torch.func.jacrev(torch.sin)(x[0]),
        torch.func.jvp(torch.cos, (x[0],), (x[1],)),
        torch.func.hessian(lambda a: a.pow(3).sum())(x[0]),
    )


@program
def double_backward() -> Any:
    torch.manual_seed(0)
    x = torch.randn(4, requires_grad=True)
    (slope,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    return slope, x.grad


@program
def parametrizations() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    )
    prune.l1_unstructured(net[1], "bias", 0.5)
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", in_turns(PROGRAMS, 2, "programs"))
def test_deterministic_training_is_the_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0
