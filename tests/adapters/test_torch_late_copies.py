"""A copy to the host that may be unfinished when its op returns has no digest; every other copy has one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from determinism.frameworks.torch.ops import as_called, traits_of
from determinism.types import NO_DIGEST
from tests.torch_runs import only, record_rows

COPY = traits_of(torch.ops.aten.copy_.default)
TO = traits_of(torch.ops.aten._to_copy.default)
HOST, GPU = (SimpleNamespace(device=torch.device(name)) for name in ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("traits", "args", "kwargs", "is_late"),
    [
        (COPY, (HOST, GPU, True), {}, True),
        (COPY, (HOST, GPU), {"non_blocking": True}, True),
        (TO, (GPU,), {"device": torch.device("cpu"), "non_blocking": True}, True),
        (COPY, (HOST, GPU), {}, False),
        (COPY, (HOST, GPU, False), {}, False),
        (COPY, (GPU, HOST, True), {}, False),
        (COPY, (GPU, GPU, True), {}, False),
        (COPY, (HOST, HOST, True), {}, False),
        (TO, (GPU,), {"device": torch.device("cpu")}, False),
        (TO, (HOST,), {"device": torch.device("cuda"), "non_blocking": True}, False),
        (TO, (GPU,), {"dtype": torch.float16, "non_blocking": True}, False),
    ],
)
def test_only_non_blocking_copies_from_a_gpu_to_the_host_are_asynchronous(
    traits: Any, args: Any, kwargs: Any, is_late: bool
) -> None:
    assert as_called(traits, args, kwargs).is_asynchronous == is_late


def test_copies_on_the_host_are_recorded_with_digests(tmp_path: Path) -> None:
    def program() -> Any:
        x = torch.ones(3)
        y = torch.empty(3)
        y.copy_(x, non_blocking=True)
        return y.to(torch.float64, non_blocking=True)

    found = record_rows(program, tmp_path)
    assert NO_DIGEST not in only(found, "copy_").digests + only(found, "_to_copy").digests
