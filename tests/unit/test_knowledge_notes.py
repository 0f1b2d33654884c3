"""Settings, history and myths."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from determinism.knowledge.entries import op_files, ops_of
from determinism.knowledge.query import framework_named, status
from tools.documented_facts import history, myths, settings

VARIABLE = re.compile(
    r"\b(?:TF|NCCL|CUBLAS|HOROVOD|NVTE|MKL|TORCHINDUCTOR|VLLM|TRITON|PRIMUS|CAUSAL|MAMBA)_[A-Z][A-Z0-9_]+\b"
)


def test_each_setting_is_listed_once() -> None:
    counted = Counter((setting.framework, setting.name) for setting in settings())
    assert len(counted) > 80
    assert [name for name, count in counted.items() if count > 1] == []
    assert {framework_named(setting.framework).identifier for setting in settings()} >= {
        "torch",
        "tensorflow",
        "jax",
        "nccl",
        "python",
    }


def test_every_variable_in_a_solution_is_described() -> None:
    described = {setting.name for setting in settings()}
    used = {
        variable
        for name in op_files()
        for op in ops_of(name)
        for status in op.statuses
        for variable in VARIABLE.findall(status.solution or "")
    }
    assert len(used) > 15
    assert sorted(used - described - {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}) == []


@pytest.mark.parametrize(
    ("name", "version", "is_there"),
    [
        ("TF_CUDNN_USE_FRONTEND", "2.6", True),
        ("TF_CUDNN_USE_FRONTEND", "2.4", False),
        ("TF_CUDNN_USE_FRONTEND", "2.19.1", True),
        ("TF_CUDNN_USE_FRONTEND", "2.20.0", False),
        ("TF_DISABLE_DEPTHWISE_CONV_DETERMINISM_EXCEPTIONS", "2.9.3", True),
        ("TF_DISABLE_DEPTHWISE_CONV_DETERMINISM_EXCEPTIONS", "2.10", False),
        ("torch.set_deterministic", "1.9.1", True),
        ("torch.set_deterministic", "1.10.2", False),
    ],
)
def test_settings_have_versions(name: str, version: str, is_there: bool) -> None:
    (setting,) = [setting for setting in settings() if setting.name == name]
    assert (version in setting.versions) is is_there


def test_each_event_is_listed_once() -> None:
    counted = Counter(event.reference for event in history())
    assert len(counted) > 120
    assert [reference for reference, count in counted.items() if count > 1] == []


def test_a_number_is_either_an_issue_or_a_pull_request_everywhere() -> None:
    sources = {source for answer in status() for one in answer.statuses for source in one.sources}
    sources |= {source for setting in settings() for source in setting.sources}
    kinds: dict[str, set[str]] = {}
    for kind, reference in [*((s.kind, s.reference) for s in sources), *((e.kind, e.reference) for e in history())]:
        if "#" in reference and kind in ("issue", "pull request"):
            kinds.setdefault(reference, set()).add(kind)

    assert len(kinds) > 150
    assert {reference: found for reference, found in kinds.items() if len(found) > 1} == {}
    # These were mixed up once: the pull request that fixed the issue has a different number.
    assert (kinds["pytorch/pytorch#195404"], kinds["pytorch/pytorch#195754"]) == ({"issue"}, {"pull request"})


def test_commits_and_numbers_are_not_mixed_up() -> None:
    assert [event.reference for event in history() if ("@" in event.reference) != (event.kind == "commit")] == []


@pytest.mark.parametrize(
    ("reference", "state", "version", "address"),
    [
        ("tensorflow/tensorflow#31465", "merged", "2.1", "https://github.com/tensorflow/tensorflow/pull/31465"),
        ("tensorflow/tensorflow#53771", "open", None, "https://github.com/tensorflow/tensorflow/issues/53771"),
        (
            "tensorflow/tensorflow@03ba364effe173d0b185977f0c14a48863d1f277",
            "merged",
            "2.7",
            "https://github.com/tensorflow/tensorflow/commit/03ba364effe173d0b185977f0c14a48863d1f277",
        ),
        ("horovod/horovod#1130", "closed", None, "https://github.com/horovod/horovod/pull/1130"),
    ],
)
def test_events_have_a_state_a_version_and_an_address(
    reference: str, state: str, version: str | None, address: str
) -> None:
    (event,) = [event for event in history() if event.reference == reference]
    assert (event.state, event.version, event.address) == (state, version, address)
    assert event.as_of


def test_myths_have_facts() -> None:
    assert len(myths()) > 10
    assert len({myth.identifier for myth in myths()}) == len(myths())
    assert all(myth.claim.endswith(".") and myth.fact.endswith(".") and myth.sources for myth in myths())
