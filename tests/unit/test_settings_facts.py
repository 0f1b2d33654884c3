"""Facts about settings: version ranges, completeness, and the tables for versions that are not installed."""

from __future__ import annotations

import re
import tomllib

import pytest

from determinism.knowledge.query import status
from determinism.knowledge.settings import (
    CONDITIONS,
    DATA,
    GROUPS,
    KINDS,
    MOMENTS,
    Fact,
    facts_of,
    flag_value,
    is_within,
    release,
    remaining_of,
    with_flag,
)

FACTS = [fact for group in GROUPS for fact in facts_of(group)]


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("2.13.0+cpu", ">=2.10", True),
        ("2.9.1", ">=2.10", False),
        ("2.10", ">=2.10", True),
        ("2.10.0rc1", ">=2.10", True),
        ("2.14.0.dev20260101", ">=1.8,<2.14", False),
        ("1.15.5", ">=1.14,<2.1", True),
        ("2.1.4", ">=1.14,<2.1", False),
        ("0.5.3", "", True),
        ("", ">=1.0", False),
    ],
)
def test_versions_are_within_ranges(version: str, bounds: str, expected: bool) -> None:
    assert is_within(version, bounds) is expected


@pytest.mark.parametrize("bounds", ["2.10", "==2.10", ">=2.x", ">= 2"])
def test_an_invalid_range_is_refused(bounds: str) -> None:
    with pytest.raises(ValueError, match="not a version bound"):
        is_within("2.10", bounds)


def test_a_release_ignores_anything_after_three_numbers() -> None:
    assert [release(text) for text in ("2.13.0+cpu", "2.1.0rc0", "1.7", "v3", "nightly")] == [
        (2, 13, 0), (2, 1, 0), (1, 7, 0), (3, 0, 0), (0, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_each_setting_is_described_in_full(fact: Fact) -> None:
    assert fact.kind in KINDS and fact.moment in MOMENTS
    assert fact.condition in CONDITIONS or fact.condition.startswith("package:")
    assert fact.why.endswith(".") and fact.line
    assert re.match(r"https://|measured with |torch/", fact.source)
    assert is_within("2.0", fact.versions) in (True, False)
    assert fact.accepts(fact.value, fact.value)


@pytest.mark.parametrize("group", GROUPS)
def test_each_remaining_source_is_described_in_full(group: str) -> None:
    for entry in remaining_of(group):
        assert entry.why.endswith(".") and entry.advice and re.match(r"https://|measured with ", entry.source)


def needed(group: str, version: str) -> set[str]:
    """The settings that a version needs, on a machine with everything."""
    return {
        fact.name
        for fact in facts_of(group)
        if fact.exists_in(version) and not fact.option and (fact.value is not None or fact.kind == "variable")
    }


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        ("1.6.0", set(), {"torch.use_deterministic_algorithms", "torch.set_deterministic", "CUBLAS_WORKSPACE_CONFIG"}),
        ("1.7.1", {"torch.set_deterministic", "CUBLAS_WORKSPACE_CONFIG"}, {"torch.use_deterministic_algorithms"}),
        ("1.13.1", {"torch.use_deterministic_algorithms"}, {"torch.set_deterministic"}),
        ("2.1.2", {"torch.use_deterministic_algorithms"}, {"torch.utils.deterministic.fill_uninitialized_memory"}),
        ("2.2.2", {"torch.utils.deterministic.fill_uninitialized_memory"}, {"torch._inductor.config.deterministic"}),
        ("2.9.1", {"CUBLAS_WORKSPACE_CONFIG"}, {"torch._inductor.config.deterministic"}),
        ("2.10.0", {"torch._inductor.config.deterministic", "CUBLAS_WORKSPACE_CONFIG"}, set()),
    ],
)
def test_settings_of_old_pytorch_versions(version: str, has: set[str], lacks: set[str]) -> None:
    found = needed("torch", version)

    assert found >= has | {"torch.backends.cudnn.deterministic", "torch.backends.cudnn.benchmark"}
    assert not found & lacks


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.13.2", set()),
        ("1.14.0", {"TF_CUDNN_DETERMINISTIC", "TF_CUDNN_USE_AUTOTUNE"}),
        ("2.0.4", {"TF_CUDNN_DETERMINISTIC", "TF_CUDNN_USE_AUTOTUNE"}),
        ("2.4.4", {"TF_DETERMINISTIC_OPS", "TF_CUDNN_USE_AUTOTUNE"}),
        ("2.6.5", {"TF_DETERMINISTIC_OPS", "TF_CUDNN_USE_FRONTEND", "TF_CUDNN_USE_AUTOTUNE"}),
        ("2.7.4", {"TF_DETERMINISTIC_OPS", "TF_CUDNN_USE_FRONTEND", "TF_CUDNN_USE_AUTOTUNE"}),
        ("2.8.0", {"tf.config.experimental.enable_op_determinism"}),
        ("2.21.0", {"tf.config.experimental.enable_op_determinism"}),
    ],
)
def test_settings_of_old_tensorflow_versions(version: str, expected: set[str]) -> None:
    assert needed("tensorflow", version) == expected


@pytest.mark.parametrize(
    ("version", "gives_wrong_results"),
    [("0.4.35", False), ("0.4.36", True), ("0.5.3", True), ("0.7.2", True), ("0.8.0", False), ("0.10.2", False)],
)
def test_wrong_results_of_scatter_have_the_same_releases_everywhere(version: str, gives_wrong_results: bool) -> None:
    (remaining,) = [entry for entry in remaining_of("jax") if "scatter on a GPU" in entry.name]
    answers = status("jax.numpy.ndarray.at[].add", framework="jax", version=version, device="gpu")
    warned = [one for answer in answers for one in answer.statuses if "index 0" in (one.note or "")]

    assert is_within(version, remaining.versions) is gives_wrong_results
    assert bool(warned) is gives_wrong_results
    assert all("xla_gpu_enable_scatter_determinism_expander=false" in (one.solution or "") for one in warned)


def test_no_setting_has_a_name_that_tensorflow_does_not_read() -> None:
    assert "TF_USE_CUDNN_AUTOTUNE" not in {fact.name for fact in FACTS}


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("PYTHONHASHSEED", ["0", "5"], ["random", "", None]),
        ("CUBLAS_WORKSPACE_CONFIG", [":4096:8", ":16:8", ":4096:2"], [":0:0", None]),
        ("MAMBA_DETERMINISTIC", [None, "1"], ["0"]),
        ("NCCL_ALGO", ["Ring", "^NVLS", "Ring,CollnetChain"], ["Tree", "Ring,Tree", None]),
        ("TF_CUDNN_USE_AUTOTUNE", [None, "1", "true"], ["0", "false"]),
        ("MKL_CBWR", ["AUTO", "AVX2,STRICT"], ["OFF", None]),
    ],
)
def test_other_values_may_be_equivalent(name: str, good: list[str | None], bad: list[str | None]) -> None:
    fact = next(fact for fact in FACTS if fact.name == name)

    assert all(fact.accepts(value, fact.value) for value in good)
    assert not any(fact.accepts(value, fact.value) for value in bad)


def test_setting_an_xla_flag_keeps_the_others() -> None:
    flags = "--xla_a=1 --xla_gpu_deterministic_ops=false --xla_b"

    assert flag_value(flags, "--xla_gpu_deterministic_ops") == "false"
    assert flag_value(flags, "--xla_b") == "true"
    assert flag_value(flags, "--xla_gpu") is None
    assert (
        with_flag(flags, "--xla_gpu_deterministic_ops", "true") == "--xla_a=1 --xla_b --xla_gpu_deterministic_ops=true"
    )
    assert with_flag("", "--xla_a", "2") == "--xla_a=2"


def test_every_entry_says_what_a_setting_does_or_what_enable_sets() -> None:
    for path in sorted(DATA.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["setting"]:
            assert "effect" in entry or "enabled" in entry, entry["name"]
            assert ("effect" in entry) == ("sources" in entry), entry["name"]
    assert {path.stem for path in DATA.glob("*.toml")} == set(GROUPS)
