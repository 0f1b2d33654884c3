"""`determinism.enable` and `determinism.seed` with JAX."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import jax
import pytest
from jax._src.distributed import global_state

import determinism
from determinism.frameworks.jax import enable
from determinism.frameworks.jax.enable import CONTROLS, key
from determinism.knowledge.settings import Effect, facts_of, xla_accepts
from determinism.seeds import Streams


def test_every_control_has_a_fact_and_every_fact_a_control() -> None:
    assert set(CONTROLS) == {fact.name for fact in facts_of("jax") if fact.kind == "control"}


def test_settings_that_change_results_are_shown_and_kept() -> None:
    with determinism.enable(seed=1) as settings:
        assert {settings[name].effect for name in CONTROLS} == {Effect.KEPT}
        assert settings["jax_default_prng_impl"].before == "threefry2x32"


def test_xla_is_asked_which_flags_it_knows() -> None:
    assert xla_accepts("--xla_gpu_deterministic_ops") and xla_accepts("xla_gpu_autotune_level")
    # The first was removed, but its name is still in the library; the second never existed.
    assert not xla_accepts("--xla_gpu_deterministic_reductions")
    assert not xla_accepts("--xla_gpu_no_such_flag")


@pytest.mark.parametrize(
    ("flag", "starts"), [("--xla_gpu_deterministic_ops=true", True), ("--xla_gpu_deterministic_reductions=true", False)]
)
def test_xla_ends_the_process_if_it_does_not_know_a_flag(flag: str, starts: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**os.environ, "XLA_FLAGS": flag}, capture_output=True, check=False,
    )  # fmt: skip

    assert (ended.returncode == 0) is starts


ON_A_GPU = """
import json, os, sys
from determinism.knowledge import settings as knowledge
knowledge.has_nvidia = lambda: True
import determinism
settings = determinism.enable(seed=1)
before = settings["--xla_gpu_deterministic_ops"]
import jax
jax.devices()
inside = os.environ["XLA_FLAGS"]
late = determinism.enable()["--xla_gpu_deterministic_ops"].effect
settings.restore()
too_late = determinism.enable()["--xla_gpu_deterministic_ops"]
print(json.dumps([before.effect, inside, late, os.environ["XLA_FLAGS"], too_late.effect, too_late.after]))
"""


def test_a_flag_is_set_before_xla_starts_and_needs_a_fresh_process_after() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_gpu_autotune_level=4"}
    found = json.loads(subprocess.check_output([sys.executable, "-c", ON_A_GPU], env=environment, text=True))
    flags = "--xla_gpu_autotune_level=4 --xla_gpu_deterministic_ops=true"

    assert found == ["took effect now", flags, "already set", flags, "needs a fresh process", "true"]


def test_the_flag_is_not_set_without_a_device_for_it() -> None:
    with determinism.enable() as settings:
        setting = settings["--xla_gpu_deterministic_ops"]

    assert setting.effect is Effect.UNNEEDED or os.path.exists("/dev/nvidiactl")


def test_keys_differ_between_names_ranks_and_epochs() -> None:
    places = [Streams(1, rank=rank, epoch=epoch) for rank, epoch in itertools.product(range(4), range(8))]
    drawn = {float(jax.random.uniform(key(streams, name))) for streams in places for name in ("a", "b")}

    assert len(drawn) == 64
    assert float(jax.random.uniform(determinism.seed(1).jax("a"))) == float(jax.random.uniform(key(Streams(1), "a")))


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_have_the_configured_kind(kind: str) -> None:
    with jax.default_prng_impl(kind):
        made = key(Streams(1), "a")
        assert str(jax.random.key_impl(made)) == kind
        assert jax.random.key_data(made).dtype == "uint32"
        assert len(set(jax.random.key_data(made).tolist())) == jax.random.key_data(made).shape[0]


def test_a_program_that_splits_its_key_repeats() -> None:
    code = "import determinism, jax; print(jax.random.normal(jax.random.split(determinism.seed(3).jax())[1], (4,)).tolist())"
    runs = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2)}

    assert len(runs) == 1


@pytest.mark.parametrize(("processes", "rank"), [(None, None), (1, None), (2, (1, 2))])
def test_the_rank_is_known_only_with_several_processes(
    processes: int | None, rank: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_state, "num_processes", processes)
    monkeypatch.setattr(global_state, "process_id", 1)

    assert enable.rank() == rank
