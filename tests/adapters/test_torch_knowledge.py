"""The knowledge about PyTorch agrees with the installed version: its docstring, names, refusals and races."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest
import torch

from determinism.frameworks.torch.patches.catalogue import PATCHES
from determinism.knowledge.query import OpStatus, status
from tests.architecture.torch_documented import by_release
from tests.documented_ops import Documented, entries_of, holds_for

ENTRIES = entries_of(torch.use_deterministic_algorithms.__doc__ or "")
LOOKED_UP = by_release()
INDICES = 1 << 19
"""From 2^15 on the work is divided among threads."""
RUNS = 60
SECONDS = 60
"""How long to wait for a difference: on a busy machine two threads rarely run at the same time."""


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Deterministic mode, for one test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads, whose order varies."""
    threads = torch.get_num_threads()
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("threads race only on two or more processors")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def kept(name: str, device: str) -> set[tuple[str | None, str | None]]:
    """The stored verdicts for the installed version."""
    answers = status(name, framework="torch", version=torch.__version__, device=device)
    return {(one.default, one.deterministic) for answer in answers for one in answer.statuses}


def test_the_docstring_was_read() -> None:
    release = re.match(r"[0-9.]+", torch.__version__)
    assert release is not None
    assert {entry.verdict for entry in ENTRIES} == {"deterministic", "raises"}
    assert len(ENTRIES) > 40
    assert release[0] not in LOOKED_UP or set(ENTRIES) == set(LOOKED_UP[release[0]])


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_every_entry_of_the_docstring_is_answered(entry: Documented) -> None:
    assert entry.names
    for name in entry.names:
        for device in entry.devices:
            answers: list[OpStatus] = status(
                name, framework="torch", version=torch.__version__, device=device, direction=entry.direction
            )
            found = [one for answer in answers for one in answer.statuses if one.basis == "documented"]
            for conditions in entry.cases:
                assert entry.verdict in {one.deterministic for one in found if holds_for(one, conditions)}


def resolved(name: str) -> bool:
    """Whether a name leads to something in PyTorch."""
    place: object = torch
    for part in name.split("(")[0].split(".")[1:]:
        if not hasattr(place, part):
            try:
                place = importlib.import_module(f"{place.__name__}.{part}")  # type: ignore[attr-defined]
            except (ImportError, AttributeError):
                return False
        else:
            place = getattr(place, part)
    return True


def test_names_exist_in_pytorch() -> None:
    answers = status(framework="torch", version=torch.__version__)
    names = {name for answer in answers for name in (answer.op.name, *answer.op.names)}
    public = sorted(name for name in names if name.startswith("torch.") and " " not in name)
    overloads = sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::"))

    assert len(public) > 150
    assert [name for name in public if not resolved(name)] == []
    assert [name for name in overloads if not hasattr(torch.ops.aten, name)] == []


def unpooled(dimensions: int) -> Callable[[str], object]:
    """A call of MaxUnpool."""
    unpool = getattr(torch.nn, f"MaxUnpool{dimensions}d")(2)

    def call(device: str) -> object:
        shape = (1, 1, *([2] * dimensions))
        return unpool(torch.ones(shape, device=device), torch.zeros(shape, dtype=torch.int64, device=device))

    return call


REFUSALS: list[tuple[str, str, Callable[[str], object]]] = [
    *((f"torch.nn.MaxUnpool{d}d", device, unpooled(d)) for d in (1, 2, 3) for device in ("cpu", "meta")),
    (
        "torch.Tensor.put_",
        "cpu",
        lambda device: torch.zeros(3, device=device).put_(torch.tensor([0, 0]), torch.ones(2)),
    ),
    (
        "torch.Tensor.resize_",
        "cpu",
        lambda device: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).resize_(4),
    ),
    ("torch.histc", "meta", lambda device: torch.ones(8, device=device).histc()),
    ("torch.median", "meta", lambda device: torch.ones(8, device=device).median(0)),
]


@pytest.mark.parametrize(("name", "device", "call"), REFUSALS, ids=[f"{name}-{device}" for name, device, _ in REFUSALS])
@pytest.mark.filterwarnings("ignore")
def test_ops_raise_without_a_gpu_as_documented(
    name: str, device: str, call: Callable[[str], object], deterministic: None
) -> None:
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation") as refused:
        call(device)

    assert "raises" in {verdict for _, verdict in kept(name, device)}
    assert name in [
        answer.op.name for answer in status(str(refused.value), framework="torch", version=torch.__version__)
    ]


def test_histc_accepts_integers(deterministic: None) -> None:
    torch.ones(8, device="meta", dtype=torch.int32).histc()
    assert (None, "deterministic") in kept("torch.histc", "cuda")


def test_uninitialized_memory_is_filled(deterministic: None) -> None:
    assert torch.empty(1000).isnan().all()
    assert ("nondeterministic", "deterministic") in kept("torch.empty", "cpu")


def racing() -> dict[str, tuple[str, Callable[[], torch.Tensor]]]:
    """Calls whose result depends on the order of two threads."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(INDICES, generator=generator)
    index = torch.randint(0, 16, (INDICES,), generator=generator)

    def gradient(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        weight = torch.zeros(16, requires_grad=True)
        call(weight).backward(values)
        assert weight.grad is not None
        return weight.grad

    return {
        "index_put": ("torch.Tensor.index_put_", lambda: torch.zeros(16).index_put_((index,), values, accumulate=True)),
        "getitem": ("torch.Tensor.__getitem__", lambda: gradient(lambda weight: weight[index])),
        "put": ("torch.Tensor.put_", lambda: torch.zeros(16).put_(index, values, accumulate=True)),
        "take": ("torch.take", lambda: gradient(lambda weight: weight.take(index))),
    }


def distinct(call: Callable[[], torch.Tensor]) -> int:
    """How many different results a call gives."""
    return len({call().numpy().tobytes() for _ in range(RUNS)})


def varies(call: Callable[[], torch.Tensor]) -> bool:
    """Whether a call gives different results within the time limit."""
    first, until = call().numpy().tobytes(), monotonic() + SECONDS
    while monotonic() < until:
        if call().numpy().tobytes() != first:
            return True
    return False


@pytest.mark.parametrize("which", racing())
def test_racing_ops_vary_on_the_cpu(which: str, two_threads: None) -> None:
    name, call = racing()[which]
    assert varies(call)
    assert ("nondeterministic", "deterministic") in kept(name, "cpu")


@pytest.mark.parametrize("which", racing())
def test_racing_ops_repeat_in_deterministic_mode(which: str, two_threads: None, deterministic: None) -> None:
    assert distinct(racing()[which][1]) == 1


@pytest.mark.parametrize("which", racing())
def test_racing_ops_repeat_with_one_thread(which: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert distinct(racing()[which][1]) == 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["scatter_add_", "index_add_"])
def test_scatter_add_and_index_add_do_not_vary_on_the_cpu(name: str, two_threads: None) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(INDICES, generator=generator)
    index = torch.randint(0, 16, (INDICES,), generator=generator)
    assert distinct(lambda: getattr(torch.zeros(16), name)(0, index, values)) == 1
    assert ("deterministic", "deterministic") in kept(f"torch.Tensor.{name}", "cpu")


def test_ops_that_pytorch_tags_as_random_depend_on_a_seed() -> None:
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    tagged = {schema.name for schema in schemas if torch.Tag.nondeterministic_seeded in tags(schema)}
    assert len(tagged) > 60
    for name in tagged:
        answers = status(name, framework="torch", version=torch.__version__)
        assert "depends" in {one.default for answer in answers for one in answer.statuses}, name


def tags(schema: torch.FunctionSchema) -> list[torch.Tag]:
    """The tags of an overload; none if Python cannot reach it."""
    overload = getattr(
        getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None), schema.overload_name or "default", None
    )
    return list(getattr(overload, "tags", ()))


@pytest.mark.parametrize("page", ["recipes.md", "knowledge.md"])
def test_the_code_on_the_pages_runs(page: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        finished = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stderr


def test_the_patches_named_with_ops_are_those_of_the_catalogue() -> None:
    named = {patch for answer in status(framework="torch") for patch in answer.op.patches}

    assert named == {patch.identity for patch in PATCHES}
