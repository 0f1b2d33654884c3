"""Kernels that a compiler chooses by timing are facts of the run: those of Inductor, its Triton kernels, and those of Triton's own autotuner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from determinism.frameworks.torch import compilers as torch_compilers
from determinism.frameworks.torch import settings
from determinism.frameworks.torch.compilers import KernelChoices


class AlgorithmSelectorCache:
    """Like Inductor's class: returns the node of a choice, and the choice."""

    def __call__(self, name: str, choices: list[Any], inputs: list[Any], layout: Any) -> Any:
        best = min(choices, key=lambda choice: choice.seconds)
        return (object(), best) if layout != "deferred" else (object(), None)


class ExternKernelCaller(SimpleNamespace):
    pass


class CppTemplateCaller(SimpleNamespace):
    pass


class CachingAutotuner:
    def __init__(self) -> None:
        self.fn = SimpleNamespace(__name__="triton_red_fused_sum_0")
        self.launchers: list[Any] = []

    def autotune_to_one_config(self) -> None:
        self.launchers = [SimpleNamespace(config="XBLOCK: 8, num_warps: 4")]


class Autotuner:
    def __init__(self, function: Any) -> None:
        self.base_fn = function
        self.cache: dict[Any, Any] = {}


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelChoices]:
    modules = {
        torch_compilers.SELECTION: {
            "AlgorithmSelectorCache": type("AlgorithmSelectorCache", (), dict(vars(AlgorithmSelectorCache)))
        },
        torch_compilers.HEURISTICS: {"CachingAutotuner": type("CachingAutotuner", (), dict(vars(CachingAutotuner)))},
        torch_compilers.AUTOTUNER: {"Autotuner": type("Autotuner", (), dict(vars(Autotuner)))},
    }
    for name, classes in modules.items():
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)
    choices = KernelChoices()
    undo = choices.watch(pytest.fail)
    yield choices
    for end in undo:
        end()
    assert all(
        "wrapper" not in getattr(vars(owner).get(method), "__qualname__", "")
        for classes in modules.values()
        for owner in classes.values()
        for method in ("__call__", "__init__", "autotune_to_one_config")
    )


def sized(*sizes: int) -> Any:
    return SimpleNamespace(get_size=lambda: sizes)


def select(*choices: Any, layout: str = "strided") -> Any:
    cache = sys.modules[torch_compilers.SELECTION].AlgorithmSelectorCache()
    return cache("mm", list(choices), [sized(64, 96), sized(96, 8)], layout)


ATEN = ExternKernelCaller(name="mm", description="", seconds=2.0)
TEMPLATE = CppTemplateCaller(name="cpp_packed_gemm_3", description="", seconds=1.0)


def test_the_choice_of_inductor_is_noted_with_op_and_shapes_but_without_its_number(
    compilers: KernelChoices,
) -> None:
    assert select(ATEN, TEMPLATE)[1] is TEMPLATE
    assert compilers.facts() == {"kernel chosen for mm of 64x96, 96x8 by Inductor": "cpp_packed_gemm"}


def test_the_kernel_of_aten_is_named_as_such(compilers: KernelChoices) -> None:
    select(ATEN)
    assert list(compilers.facts().values()) == ["mm (ATen)"]


def test_a_choice_that_inductor_defers_is_not_noted(compilers: KernelChoices) -> None:
    assert select(ATEN, TEMPLATE, layout="deferred")[1] is None
    assert compilers.facts() == {}


def test_an_unknown_choice_still_reaches_the_program(compilers: KernelChoices) -> None:
    odd = SimpleNamespace(seconds=0.0)
    assert select(odd)[1] is odd
    assert compilers.facts() == {}


def test_the_configuration_of_a_triton_kernel_of_inductor_is_noted(compilers: KernelChoices) -> None:
    tuner = sys.modules[torch_compilers.HEURISTICS].CachingAutotuner()
    tuner.autotune_to_one_config()
    assert compilers.facts() == {"kernel chosen for triton_red_fused_sum_0 by Inductor": "XBLOCK: 8, num_warps: 4"}


def test_the_choice_of_triton_for_each_key_is_noted(compilers: KernelChoices) -> None:
    def l2norm() -> None: ...

    tuner = sys.modules[torch_compilers.AUTOTUNER].Autotuner(l2norm)
    tuner.cache[1024, "torch.float32"] = "BLOCK_SIZE: 128, num_warps: 4"
    assert compilers.facts() == {
        "kernel chosen for l2norm(1024, torch.float32) by Triton": "BLOCK_SIZE: 128, num_warps: 4"
    }
    del tuner
    assert compilers.facts() == {}, "the recorder keeps no function alive"


def test_the_watched_names_exist_in_this_version() -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner as Heuristics
    from torch._inductor.select_algorithm import AlgorithmSelectorCache as Selection

    assert callable(Selection.__call__)
    assert callable(Heuristics.autotune_to_one_config)
    if "triton" in sys.modules:
        from triton.runtime.autotuner import Autotuner as Tuner

        assert callable(Tuner.__init__)


class _Asked:
    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, architecture: int) -> str:
        return "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 12.8, V12.8.93\n"

    def cache_info(self) -> Any:
        return SimpleNamespace(currsize=self.times)


@pytest.mark.parametrize(("times", "version"), [(1, "12.8.93"), (0, None)])
def test_ptxas_is_queried_only_if_triton_has_used_it(
    times: int, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("triton.backends.nvidia.compiler")
    module.get_ptxas_version = _Asked(times)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    assert settings.ptxas_version() == version


@pytest.mark.skipif(torch.version.cuda is not None, reason="a PyTorch for GPUs loads the library")
def test_a_library_that_is_not_loaded_has_no_version() -> None:
    assert settings.cublaslt_version() is None
