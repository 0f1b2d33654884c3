"""Where compile caches are, whether they are filled, and which of them a file belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism import environment
from determinism.compile_caches import COMPILE_CACHES, compile_cache_facts, compile_cache_of, empty_caches
from determinism.environment import Part, part_of


def test_a_cache_is_warm_once_it_holds_a_file(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "kernels")}
    name = "compile cache of Triton"
    assert compile_cache_facts(environ)[name] == "empty"
    (tmp_path / "kernels" / "fxgraph").mkdir(parents=True)
    assert compile_cache_facts(environ)[name] == "empty", "folders alone hold nothing"
    (tmp_path / "kernels" / "fxgraph" / "a.json").touch()
    assert compile_cache_facts(environ)[name] == "warm"


def test_a_cache_that_is_not_enabled_is_not_a_fact(tmp_path: Path) -> None:
    assert "compile cache of JAX" not in compile_cache_facts({"HOME": str(tmp_path)})
    assert "compile cache of JAX" in compile_cache_facts({"JAX_COMPILATION_CACHE_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("home/.triton/cache/ab/kernel.json", "Triton"),
        ("home/.nv/ComputeCache/1/index", "CUDA"),
        ("inductor/fxgraph/x", "Inductor"),
        ("inductor-of-mine/x", None),
        ("home/project/cache.json", None),
    ],
)
def test_a_file_belongs_to_the_cache_that_contains_it(file: str, owner: str | None, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "home"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    cache = compile_cache_of(str(tmp_path / file), environ)
    assert (None if cache is None else cache.owner) == owner


def test_each_cache_gets_its_own_folder(tmp_path: Path) -> None:
    given = dict(empty_caches(tmp_path))
    assert given.keys() == {cache.variable for cache in COMPILE_CACHES}
    assert len(set(given.values())) == len(given)


def test_every_nccl_variable_and_the_caches_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOME_NEW_ONE", "3")
    monkeypatch.setenv("MY_NCCL_TOKEN", "secret")
    facts = environment.describe()
    assert facts["variable NCCL_SOME_NEW_ONE"] == "3"
    assert not any("MY_NCCL" in name for name in facts)
    assert {"compile cache of Inductor", "compile cache of Triton"} <= facts.keys()


def test_a_kernel_choice_may_change_numbers_but_a_warm_cache_alone_does_not() -> None:
    assert part_of("kernel chosen for mm of 2x2 by Inductor") is Part.LIBRARIES
    assert part_of("compile cache of Inductor") is Part.OTHER
    assert part_of("variable TRITON_CACHE_DIR") is Part.OTHER
    assert part_of("variable TORCHINDUCTOR_DETERMINISTIC") is Part.SETTINGS
