"""The statuses that apply to a version, a device and a direction."""

from __future__ import annotations

import pytest

import determinism
from determinism.errors import UsageError
from determinism.knowledge import query
from determinism.knowledge.query import OpStatus, framework_named, not_installed, status

TORCH, TENSORFLOW = framework_named("torch"), framework_named("tensorflow")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed versions, for a test to fill in."""
    versions: dict[str, str] = {}
    monkeypatch.setattr(query, "_versions", lambda places: versions)
    monkeypatch.delenv(query.CONTAINER_VARIABLE, raising=False)
    return versions


def verdicts(answers: list[OpStatus]) -> set[tuple[str, str | None, str | None]]:
    """Device and verdicts of each status."""
    return {(one.device.value, one.default, one.deterministic) for answer in answers for one in answer.statuses}


def test_the_public_function_is_status() -> None:
    assert determinism.status is status


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.9.1", "raises"),
        ("1.12.1", "raises"),
        ("1.13.0", "deterministic"),
        ("2.13.0+cpu", "deterministic"),
        ("3.0", "deterministic"),
    ],
)
def test_a_version_selects_statuses(version: str, expected: str) -> None:
    (answer, _) = status("scatter_add", framework="torch", version=version, device="cuda")
    assert expected in {one.deterministic for one in answer.statuses}
    assert (answer.version, answer.installed) == (version, False)


def test_documented_and_observed_verdicts_are_both_given() -> None:
    answers = status("torch.nn.functional.interpolate", framework="torch", version="2.13", device="cuda")
    bilinear = {one.basis.value: one.deterministic for one in answers[0].statuses if one.condition == "mode='bilinear'"}
    assert bilinear == {"documented": "raises", "observed": "deterministic"}


def test_installed_versions_are_used(nothing_installed: dict[str, str]) -> None:
    nothing_installed["torch"] = "1.9.1+cu111"
    (answer, *_) = status("torch.Tensor.scatter_add_")
    assert (answer.version, answer.installed, answer.framework) == ("1.9.1+cu111", True, TORCH)
    assert ("cuda", "nondeterministic", "raises") in verdicts([answer])


def test_a_name_in_several_frameworks_means_the_installed_one(nothing_installed: dict[str, str]) -> None:
    assert {answer.framework.identifier for answer in status("conv2d")} == {"torch", "tensorflow"}
    assert not_installed("conv2d") == []

    nothing_installed["tensorflow-cpu"] = "2.21.0"
    assert {answer.framework.identifier for answer in status("conv2d")} == {"tensorflow"}
    assert not_installed("conv2d") == ["torch.nn.Conv2d (torch)"]
    assert {answer.framework.identifier for answer in status("conv2d", framework="pytorch")} == {"torch"}


def test_without_a_version_all_statuses_are_given() -> None:
    (answer,) = status("torch.kthvalue")
    assert answer.version is None
    assert answer.statuses == answer.op.statuses


@pytest.mark.parametrize(
    ("device", "expected"),
    [("mps", {"mps"}), ("cuda", {"cuda"}), ("cpu", {"cpu"}), ("gpu", {"mps", "cuda"}), ("rocm", set())],
)
def test_a_device_selects_statuses(device: str, expected: set[str]) -> None:
    answers = status("torch.nn.Embedding", framework="torch", device=device)
    assert {one.device.value for answer in answers for one in answer.statuses} == expected


def test_a_status_for_any_device_applies_to_each_device() -> None:
    for device in ("cpu", "cuda", "meta"):
        assert ("any", "nondeterministic", "raises") in verdicts(
            status("torch.nn.MaxUnpool2d", version="2.13", device=device)
        )


def test_gpu_of_tensorflow_is_also_cuda_and_rocm() -> None:
    for device in ("gpu", "cuda", "rocm"):
        assert ("gpu", "nondeterministic", "raises") in verdicts(
            status("tf.math.bincount", version="2.11", device=device)
        )


def test_a_direction_selects_statuses() -> None:
    forward = status("tf.gather", version="2.11", direction="forward", device="gpu")
    backward = status("tf.gather", version="2.11", direction="backward", device="gpu")
    assert verdicts(forward) == {("gpu", "deterministic", "deterministic")}
    assert verdicts(backward) == {("gpu", "nondeterministic", "deterministic")}


def test_a_verdict_selects_statuses() -> None:
    answers = status(framework="torch", version="2.13", verdict="raises")
    assert len(answers) > 20
    assert all("raises" in one.verdicts for answer in answers for one in answer.statuses)
    assert all(answer.statuses for answer in answers)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("20.03", "deterministic"),
        ("20.03-tf2", "deterministic"),
        ("20.02", "nondeterministic"),
        ("22.05", "deterministic"),
    ],
)
def test_a_container_has_the_verdicts_of_its_tensorflow(version: str, expected: str) -> None:
    answers = status("tf.image.resize_bilinear", framework="ngc", version=version, device="gpu", direction="backward")
    assert expected in {one.deterministic for answer in answers for one in answer.statuses}


def test_variants_of_a_container_have_different_versions_of_tensorflow() -> None:
    ngc = framework_named("ngc-tensorflow")
    assert [ngc.base(version) for version in ("19.06", "20.02-tf1", "20.02-tf2", "21.12", "23.05")] == [
        "1.13",
        "1.15",
        "2.1",
        "2.6",
        "2.11",
    ]
    assert ngc.base("18.01") is None


def test_the_running_container_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(query.CONTAINER_VARIABLE, "21.05")
    answers = status("tf.sparse.sparse_dense_matmul", framework="ngc", device="gpu")
    assert answers[0].installed
    assert {"depends", "raises"} <= {one.deterministic for one in answers[0].statuses}


def test_an_unexamined_version_is_flagged() -> None:
    known = [
        status("torch.histc", version=version)[0].is_beyond_what_is_known
        for version in ("1.6", "1.7.1", "2.15.3", "2.16.0")
    ]
    assert known == [True, False, False, True]


@pytest.mark.parametrize(
    ("ops", "filters", "identifier", "part"),
    [
        (["torch.nope"], {}, "op-unknown", "'torch.nope'"),
        (["torch.Tensor.scatter_ad_"], {}, "op-unknown", "Did you mean torch.Tensor.scatter_add_"),
        (["torch.nn.Conv2d"], {"framework": "jax"}, "op-unknown", "it is one of torch"),
        (["torch.histc"], {"framework": "mxnet"}, "framework-unknown", "tensorflow"),
        (["torch.histc"], {"version": "newest"}, "version-unreadable", "'newest'"),
        (["conv2d"], {"version": "2.6"}, "version-without-framework", "tensorflow, torch"),
        ([], {"version": "2.6"}, "version-without-framework", "--framework"),
        (["torch.histc"], {"device": "cuda:0"}, "filter-unknown", "cpu, cuda"),
        (["torch.histc"], {"direction": "sideways"}, "filter-unknown", "forward, backward"),
        (["torch.histc"], {"verdict": "maybe"}, "filter-unknown", "raises"),
    ],
)
def test_unanswerable_questions_are_refused_with_a_reason(
    ops: list[str], filters: dict[str, str], identifier: str, part: str
) -> None:
    with pytest.raises(UsageError) as refused:
        status(*ops, **filters)  # type: ignore[arg-type]
    assert refused.value.identifier == identifier
    assert part in refused.value.message


def test_a_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(UsageError) as refused:
        status("y" * 5000)
    assert len(refused.value.message) < 500


def test_the_mode_of_each_version() -> None:
    hows = {version: TENSORFLOW.mode(version) for version in ("1.14", "2.0", "2.1", "2.6", "2.8", "2.21")}
    assert [next(word for word in ("TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "enable_op_determinism") if mode and word in mode.how) for mode in hows.values()] == [
        "TF_CUDNN_DETERMINISTIC", "TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_DETERMINISTIC_OPS", "enable_op_determinism", "enable_op_determinism",
    ]  # fmt: skip
    mode = TORCH.mode("1.7.1")
    assert mode is not None and mode.how == "torch.set_deterministic(True)"
