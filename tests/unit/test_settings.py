"""`determinism.enable` without a framework loaded, and the display of settings."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import determinism
from determinism.errors import UsageError
from determinism.knowledge import settings
from determinism.knowledge.settings import Effect, Fact, Remaining, Request, Setting, explanation, html_table, table
from determinism.session import enable
from determinism.session.enable import Change, make


def a_fact(**changes: Any) -> Fact:
    described = {
        "group": "libraries",
        "name": "A_LIBRARY",
        "kind": "variable",
        "value": "1",
        "why": "Why.",
        "source": "here",
    }
    return Fact(**{**described, **changes})


def a_setting(effect: Effect = Effect.NOW, **changes: Any) -> Setting:
    described = {"name": "a.b", "group": "torch", "before": False, "after": True, "why": "Why.", "source": "here"}
    return Setting(**{**described, "effect": effect, **changes})


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_LIBRARY", raising=False)


class TestVariables:
    def test_a_variable_is_set_and_restored(self) -> None:
        change = make(a_fact(), "", Request())
        assert os.environ["A_LIBRARY"] == "1"
        assert change.setting.effect is Effect.NOW and change.undo is not None
        change.undo()

        assert "A_LIBRARY" not in os.environ

    def test_a_previous_value_is_restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_LIBRARY", "0")
        change = make(a_fact(), "", Request())
        assert (change.setting.before, change.setting.after) == ("0", "1")
        assert change.undo is not None
        change.undo()

        assert os.environ["A_LIBRARY"] == "0"

    def test_an_equivalent_value_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_LIBRARY", "yes")

        assert make(a_fact(accepted="y.*"), "", Request()).setting.effect is Effect.ALREADY
        assert os.environ["A_LIBRARY"] == "yes"

    def test_a_variable_that_must_not_be_set_is_removed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_LIBRARY", "0")
        change = make(a_fact(value=None, accepted="1"), "", Request())

        assert "A_LIBRARY" not in os.environ and change.setting.effect is Effect.NOW
        assert change.undo is not None
        change.undo()
        assert os.environ["A_LIBRARY"] == "0"

    @pytest.mark.parametrize("moment", ["start", "libraries"])
    def test_a_variable_set_too_late_affects_only_child_processes(
        self, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change = make(a_fact(moment=moment), "", Request())
        monkeypatch.delenv("A_LIBRARY")

        assert change.setting.effect is Effect.FRESH and change.setting.effect.is_open
        assert change.setting.after == "1" and "started from now on" in change.setting.detail

    def test_inspecting_changes_nothing(self) -> None:
        assert make(a_fact(), "", Request(change=False)) == Change(make(a_fact(), "", Request(change=False)).setting)
        assert make(a_fact(), "", Request(change=False)).setting.effect is Effect.MISSING
        assert "A_LIBRARY" not in os.environ

    def test_an_option_that_is_not_given_is_left_unchanged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_LIBRARY", "3")
        fact = a_fact(value=None, option="threads")

        assert make(fact, "", Request()).setting.effect is Effect.KEPT
        assert make(fact, "", Request(threads=3)).setting.effect is Effect.ALREADY
        assert make(fact, "", Request(threads=2)).setting.after == "2"


def test_a_setting_that_the_version_lacks_is_not_applied() -> None:
    setting = make(a_fact(group="torch", versions=">=2.10"), "2.9.1", Request()).setting

    assert setting.effect is Effect.ABSENT and "2.9.1" in setting.detail
    assert "A_LIBRARY" not in os.environ


@pytest.mark.parametrize("condition", ["package:no_such_package", "nvidia", "warn-only"])
def test_an_unneeded_setting_is_not_applied(condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_NVIDIA_DEVICES", ("/dev/no-such-device",))

    assert make(a_fact(condition=condition), "", Request()).setting.effect is Effect.UNNEEDED
    assert "A_LIBRARY" not in os.environ


def test_a_flag_that_xla_does_not_know_is_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    fact = a_fact(group="jax", name="--xla_gone", kind="flag", value="true")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(enable, "xla_accepts", lambda flag: False)

    assert make(fact, "0.10.2", Request()).setting.effect is Effect.ABSENT
    assert "XLA_FLAGS" not in os.environ


def test_a_flag_is_added_to_existing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fact = a_fact(group="jax", name="--xla_some", kind="flag", value="true")
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=1")
    monkeypatch.setattr(enable, "xla_accepts", lambda flag: True)
    change = make(fact, "0.10.2", Request())

    assert os.environ["XLA_FLAGS"] == "--xla_other=1 --xla_some=true"
    assert change.undo is not None
    change.undo()
    assert os.environ["XLA_FLAGS"] == "--xla_other=1"


class TestEnabling:
    def test_a_context_restores_everything(self) -> None:
        # If PyTorch is loaded, it sets an environment variable itself when its compiler's settings are first read.
        determinism.enable(seed=2).restore()
        environment, states = dict(os.environ), (random.getstate(), np.random.get_state(legacy=False))
        with determinism.enable(seed=1):
            inside = (random.random(), np.random.rand(), np.random.default_rng().random())
            assert os.environ["PYTHONHASHSEED"] and dict(os.environ) != environment
        with determinism.enable(seed=1):
            assert (random.random(), np.random.rand(), np.random.default_rng().random()) == inside

        assert dict(os.environ) == environment
        assert (random.getstate(), str(np.random.get_state(legacy=False))) == (states[0], str(states[1]))
        assert np.random.default_rng().random() != np.random.default_rng().random()

    def test_an_error_of_the_program_propagates(self) -> None:
        before = dict(os.environ)
        with pytest.raises(ZeroDivisionError), determinism.enable(seed=1):
            raise ZeroDivisionError

        assert dict(os.environ) == before

    def test_a_setting_that_cannot_be_restored_is_reported(self) -> None:
        settings = determinism.enable()
        settings.will_undo("a lever", lambda: 1 // 0)

        with pytest.raises(determinism.DeterminismError, match="a lever .ZeroDivisionError"):
            settings.restore()
        settings.restore()

    def test_the_hash_seed_needs_a_fresh_process(self) -> None:
        code = (
            "import determinism, json; s = determinism.enable(); import subprocess, sys; "
            "print(json.dumps([s['PYTHONHASHSEED'].effect, [one.name for one in s.open], "
            "subprocess.check_output([sys.executable, '-c', 'import sys; print(sys.flags.hash_randomization)'], text=True)]))"
        )
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        fresh, seeded = (
            json.loads(subprocess.check_output([sys.executable, "-c", code], env={**environment, **more}, text=True))
            for more in ({}, {"PYTHONHASHSEED": "3"})
        )

        assert fresh == ["needs a fresh process", ["PYTHONHASHSEED"], "0\n"]
        assert seeded == ["already set", [], "1\n"]

    def test_nothing_is_printed(self, capfd: pytest.CaptureFixture[str]) -> None:
        determinism.enable(seed=1).restore()

        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        "arguments", [{"threads": 0}, {"threads": True}, {"threads": "2"}, {"precision": "exact"}, {"seed": -0.5}]
    )
    def test_a_request_out_of_range_changes_nothing(self, arguments: dict[str, Any]) -> None:
        before = dict(os.environ)

        with pytest.raises(UsageError, match=next(iter(arguments.values())).__repr__()):
            determinism.enable(**arguments)
        assert dict(os.environ) == before

    def test_one_setting_is_found_by_its_name(self) -> None:
        with determinism.enable() as settings:
            assert settings["PYTHONHASHSEED"].source.startswith("https://docs.python.org")
            assert len(settings) == len(list(settings))
            with pytest.raises(KeyError):
                settings["no such setting"]


def test_a_folder_with_the_name_of_a_framework_is_not_a_framework(tmp_path: Path) -> None:
    for name in ("torch", "jax"):
        (tmp_path / name).mkdir()
    code = (
        "import sys; sys.path[:] = [entry for entry in sys.path if 'site-packages' not in entry]; import torch, jax, json, determinism;"
        "print(json.dumps([[one.group for one in determinism.enable(seed=1)], [torch.__file__, jax.__file__]]))"
    )
    groups, files = json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True))

    assert files == [None, None]
    assert set(groups) == {"python", "libraries"}


def test_a_framework_that_cannot_be_seeded_is_reported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'")
    code = (
        "import torch, json, determinism; settings = determinism.enable(seed=1)\n"
        "print(json.dumps([settings['seed of torch, on every device'].effect, settings['seed of random'].effect]))\n"
        "try: determinism.seed(1)\nexcept determinism.DeterminismError as error: print(error.identifier)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True).splitlines()

    assert json.loads(printed[0]) == ["could not be applied", "took effect now"]
    assert printed[1:] == ["seed-failed"]


class TestShowing:
    def test_settings_that_need_attention_come_first(self) -> None:
        settings = [
            a_setting(Effect.ALREADY, name="a"),
            a_setting(Effect.NOW, name="b"),
            a_setting(Effect.FAILED, name="c"),
        ]
        lines = table(settings).splitlines()

        assert [line.split()[-4] for line in lines[:2]] == ["c", "b"]
        assert lines[0].startswith("could not be applied") and lines[0].endswith("False -> True")

    def test_irrelevant_settings_are_only_counted(self) -> None:
        text = table([a_setting(Effect.ABSENT), a_setting(Effect.ABSENT), a_setting(Effect.UNNEEDED)])

        assert "and 2 settings: does not exist in this version" in text and "and 1 setting: not needed here" in text
        assert "a.b" not in text

    def test_html_is_escaped(self) -> None:
        attack = "<script>alert('x')</script>"
        remaining = [Remaining("torch", attack, "", attack, attack, attack, attack)]
        settings = [a_setting(name=attack, before=attack, after=attack, why=attack, detail=attack, group=attack)]
        text = html_table(settings, remaining)

        assert "<script" not in text and text.count("&lt;script&gt;") >= 6

    def test_the_explanation_has_reason_source_and_line(self) -> None:
        text = explanation([a_setting(Effect.FAILED, detail="it was refused", line="a.b = True")])

        assert text.splitlines() == [
            "a.b: could not be applied (False -> True)",
            "  Why.",
            "  It was refused.",
            "  By hand: a.b = True",
            "  Source: here",
        ]
