"""PyTorch's own samples have the same outcome with replaced ops as in stock: results, gradients, second gradients, errors."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from determinism.audit.torch import database
from tests.thorough import in_turns
from tests.torch_patched import close, patched_cpu

pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = re.compile(
    "adaptive_|avg_pool3d|fractional|max_pool3d|max_unpool.d$|interpolate_(linear|bi|tri|area)|upsample_bilinear|pad_re|^grid_sampler_2d"
    "|grid_sample$|nll_loss$|cross_entropy$|ctc|embedding_bag|^put|^take|index_(add|select|reduce|put)|^scatter|^histc|bincount|median"
    "|kthvalue|^cumsum|^gather|__getitem__"
)
INFOS = [info for info in database() if SAMPLES.search(info.formatted_name) and "gaussian" not in info.formatted_name]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, so that stock ops with unspecified results always choose the same one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outcome(info: Any, sample: Any, has_gradient: bool) -> list[Any]:
    """Results, gradients and second gradients; or the text of the error."""
    try:
        return _outcome(info, sample, has_gradient)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def _outcome(info: Any, sample: Any, has_gradient: bool) -> list[Any]:
    def fresh(value: Any) -> Any:
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
        return value.detach().clone().requires_grad_(value.requires_grad) if plain else value

    given, args, named = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(5)
    results = [one for one in tree_leaves(info.op(given, *args, **named)) if isinstance(one, torch.Tensor)]
    leaves = [one for one in tree_leaves((given, args, named)) if isinstance(one, torch.Tensor) and one.requires_grad]
    followed = [one for one in results if one.requires_grad]
    if not (has_gradient and leaves and followed):
        return results
    directions = [torch.randn(one.shape, dtype=torch.float64).to(one.dtype).requires_grad_() for one in followed]
    first = _given(torch.autograd.grad(followed, leaves, directions, create_graph=True, allow_unused=True))
    again = [one for one in first if one.requires_grad]
    second = []
    if again and info.supports_gradgrad:
        ones = [torch.ones_like(one) for one in again]
        second = _given(torch.autograd.grad(again, [*leaves, *directions], ones, allow_unused=True))
    return [*results, *first, *second]


def _given(gradients: Any) -> list[torch.Tensor]:
    return [one for one in gradients if one is not None]


@pytest.mark.parametrize("info", in_turns(INFOS, 12, "samples", lambda info: info.formatted_name))
def test_pytorchs_own_samples_have_the_same_outcome_as_in_stock(info: Any) -> None:
    for dtype in (torch.float64, torch.float32, torch.complex64):
        if dtype not in info.dtypes:
            continue
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        has_gradient = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        most = 10 if dtype == torch.float64 else 3
        for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=has_gradient), most):
            stock = outcome(info, sample, has_gradient)
            with patched_cpu():
                result = outcome(info, sample, has_gradient)
            assert len(stock) == len(result)
            assert all(close(one, two) for one, two in zip(stock, result, strict=True)), (dtype, sample)


@pytest.mark.parametrize(
    "info", in_turns([one for one in INFOS if one.error_inputs_func], 12, "samples", lambda info: info.formatted_name)
)
def test_wrong_input_raises_the_same_error_as_in_stock(info: Any) -> None:
    def message(sample: Any) -> str:
        try:
            info.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    samples = [one.sample_input for one in info.error_inputs("cpu")]
    stock = [message(one) for one in samples]
    with patched_cpu():
        assert [message(one) for one in samples] == stock
