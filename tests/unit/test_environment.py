"""Only environment variables that are known to matter are recorded."""

from __future__ import annotations

import pytest

from determinism.environment import describe
from determinism.knowledge.settings import GROUPS, facts_of
from determinism.redaction import is_secret_name


def recorded() -> dict[str, str]:
    """The recorded variables of this process."""
    return {name.removeprefix("variable "): value for name, value in describe().items() if name.startswith("variable ")}


@pytest.mark.parametrize(
    "name", ["NVIDIA_API_KEY", "TF_VAR_db_password", "TORCH_HUB_TOKEN", "CUDA_X", "TF_CONFIG", "PATH", "WANDB_API_KEY"]
)
def test_the_value_of_any_other_variable_is_not_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "hunter2")
    assert "hunter2" not in str(describe())


def test_every_variable_that_is_a_setting_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {fact.name for group in GROUPS for fact in facts_of(group) if fact.kind == "variable"} | {"XLA_FLAGS"}
    for name in names:
        monkeypatch.setenv(name, "1")
    assert names <= recorded().keys()


def test_no_recorded_variable_has_the_name_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    from determinism import environment

    assert [name for name in environment._VARIABLES if is_secret_name(name)] == []


def test_secret_in_a_recorded_variable_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0 --upload-token=hunter2")
    assert recorded()["XLA_FLAGS"] == "--xla_gpu_autotune_level=0 --upload-token=***"
