"""`determinism.enable` with PyTorch: what is set, that it has an effect, and that everything is restored exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import islice, takewhile
from time import monotonic
from typing import Any

import pytest
import torch

import determinism
from determinism.frameworks.torch.settings import CONTROLS
from determinism.knowledge.settings import Effect, facts_of

ELEMENTS = 1 << 21
"""PyTorch 2.13 adds 32,768 and more with several threads; with this many, threads race even on a busy machine."""
NEEDS_THREADS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor adds up in one order")


def readings() -> dict[str, Any]:
    """The value of every setting, or the message of the error that reading it raises."""
    found: dict[str, Any] = {}
    for name, control in CONTROLS.items():
        try:
            found[name] = control.read()
        except AttributeError as error:
            found[name] = str(error)
    return found


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before = readings()
    yield
    assert readings() == before


def sums() -> Iterator[bytes]:
    """Yield the result of one indexed sum, computed again each time."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(ELEMENTS, generator=generator)
    places = torch.randint(0, 16, (ELEMENTS,), generator=generator)
    while True:
        yield torch.zeros(16).index_put_((places,), values, accumulate=True).numpy().tobytes()


def varies() -> bool:
    """Whether the sum has more than one result within a minute: on a busy machine, threads may run in turns for a while."""
    found, until = sums(), monotonic() + 60
    first = next(found)
    return any(result != first for result in takewhile(lambda _: monotonic() < until, found))


def test_every_control_has_a_fact_and_every_fact_a_control() -> None:
    assert set(CONTROLS) == {fact.name for fact in facts_of("torch") if fact.kind == "control"}


@NEEDS_THREADS
def test_a_nondeterministic_op_is_deterministic_only_while_enabled() -> None:
    assert varies()
    with determinism.enable():
        assert len(set(islice(sums(), 30))) == 1
    assert varies()


def test_all_settings_take_effect() -> None:
    with determinism.enable(seed=1) as settings:
        torch_settings = [one for one in settings if one.group == "torch"]
        effects = {one.name: one.effect for one in torch_settings}

        assert {effects[fact.name] for fact in facts_of("torch") if fact.value is not None and not fact.condition} == {
            Effect.NOW,
            Effect.ALREADY,
            Effect.ABSENT,
        }
        assert effects.pop("torch.set_deterministic") is Effect.ABSENT
        assert Effect.ABSENT not in effects.values()
        assert not {Effect.FAILED, Effect.WAITING} & set(effects.values())
        assert torch.get_deterministic_debug_mode() == 2
        assert torch._inductor.config.deterministic is True
        assert torch.isnan(torch.empty(1000)).all()


@pytest.mark.parametrize("mode", ["off", "warn", "error"])
@pytest.mark.parametrize("inductor", [False, True])
def test_every_combination_of_settings_is_restored(mode: str, inductor: bool) -> None:
    before = readings()
    try:
        CONTROLS["torch.use_deterministic_algorithms"].write(mode)
        torch._inductor.config.deterministic = inductor
        torch.backends.cudnn.benchmark = True
        torch.utils.deterministic.fill_uninitialized_memory = False
        started_with = readings()
        with determinism.enable(seed=1, threads=1, precision="medium") as settings:
            assert torch.get_num_threads() == 1
            assert torch.get_float32_matmul_precision() == "medium"
            assert not torch.backends.cudnn.benchmark
            assert settings["torch.use_deterministic_algorithms"].before == mode
        assert readings() == started_with
    finally:
        CONTROLS["torch.use_deterministic_algorithms"].write(before["torch.use_deterministic_algorithms"])
        for name, value in before.items():
            if readings()[name] != value:
                CONTROLS[name].write(value)


def test_warn_only_selects_attention_that_does_not_need_to_warn() -> None:
    with determinism.enable(warn_only=True) as settings:
        assert torch.get_deterministic_debug_mode() == 1
        assert settings["torch.use_deterministic_algorithms"].after == "warn"
        assert not torch.backends.cuda.flash_sdp_enabled() and not torch.backends.cuda.mem_efficient_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
        assert "put_ does not have a deterministic implementation" in str(caught[0].message)


def test_contexts_may_be_nested() -> None:
    with determinism.enable():
        with determinism.enable(warn_only=True):
            assert torch.get_deterministic_debug_mode() == 1
        assert torch.get_deterministic_debug_mode() == 2


def test_generators_are_restored() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with determinism.enable(seed=1):
        inside = torch.rand(3)

    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(inside, expected)


def test_looking_again_finds_a_setting_that_the_program_changed() -> None:
    from determinism.session.enable import look

    with determinism.enable(seed=1):
        assert {one.name for one in look().open} <= {"PYTHONHASHSEED"}
        torch.backends.cudnn.benchmark = True
        assert "torch.backends.cudnn.benchmark" in {one.name for one in look().open}
        torch.backends.cudnn.benchmark = False


LATE = """
import determinism, json
settings = determinism.enable(seed=1)
waited = settings["torch.use_deterministic_algorithms"].effect
import torch
inside = [torch.get_deterministic_debug_mode(), torch.rand(1).item(), settings["torch.use_deterministic_algorithms"].effect]
settings.restore()
print(json.dumps([waited, *inside, torch.get_deterministic_debug_mode(), torch._inductor.config.deterministic]))
"""


def test_a_setting_that_is_overridden_is_open_until_all_are_restored() -> None:
    def overridden() -> list[tuple[str, Any, Any]]:
        return [(one.name, one.before, one.after) for one in settings.open if one.effect is Effect.OVERRIDDEN]

    with determinism.enable() as settings:
        assert overridden() == []
        torch.backends.cudnn.benchmark = True
        assert overridden() == [("torch.backends.cudnn.benchmark", False, True)]
    assert overridden() == []


def test_settings_wait_for_a_later_import() -> None:
    environment = {**os.environ, "TORCHINDUCTOR_DETERMINISTIC": "1"}
    found = json.loads(subprocess.check_output([sys.executable, "-c", LATE], env=environment, text=True))
    with determinism.enable(seed=1):
        expected = torch.rand(1).item()

    # PyTorch's own environment variable turns the compiler's setting on, and it stays on.
    assert found == ["waits for the import", 2, expected, "took effect now", 0, True]


def test_after_restoring_a_later_import_is_left_alone() -> None:
    code = "import determinism; determinism.enable(seed=1).restore(); import torch; print(torch.get_deterministic_debug_mode())"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "0\n"


def test_a_setting_that_the_version_lacks_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with determinism.enable() as settings:
        setting = settings["torch._inductor.config.deterministic"]

    assert setting.effect is Effect.ABSENT
    assert setting.detail == "torch 2.9.1 is installed; it is for >=2.10"


def test_a_setting_that_has_no_effect_is_reported_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from determinism.knowledge.settings import Control

    monkeypatch.setitem(CONTROLS, "torch.backends.cudnn.benchmark", Control(lambda: True, lambda value: None))
    with determinism.enable() as settings:
        setting = settings["torch.backends.cudnn.benchmark"]

    assert setting.effect is Effect.FAILED and setting in settings.open
    assert setting.detail == "it was set to False and is True"
