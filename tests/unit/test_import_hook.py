"""Calling back after an import changes nothing about the module that was imported."""

import copy
import importlib
import importlib.resources
import importlib.util
import inspect
import json
import pickle
import sys
import threading
import types
from pathlib import Path

import pytest

from determinism.import_hook import after_import
from determinism.launch.notes import note_not_recorded
from determinism.run_spec import RunSpec

NAME = "hooked_example"


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "packages" / NAME
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import sys\n\nclass Point:\n    x = 1\n\nexecutions = globals().get('executions', 0) + 1\n"
    )
    (package / "part.py").write_text("value = 7\n")
    (package / "data.txt").write_text("content")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
    from determinism import import_hook

    import_hook._FINDER.callbacks.clear()


def test_a_callback_is_called_once_right_after_execution() -> None:
    seen = []
    after_import(NAME, lambda module: seen.append(module.executions), note_not_recorded)
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [1]
    importlib.reload(module)
    assert seen == [1]
    assert module.executions == 2


def test_module_that_is_already_imported() -> None:
    module = importlib.import_module(NAME)
    seen = []
    after_import(NAME, seen.append, note_not_recorded)
    assert seen == [module]


def test_several_callbacks_are_called_in_order() -> None:
    seen = []
    after_import(NAME, lambda module: seen.append("first"), note_not_recorded)
    after_import(NAME, lambda module: seen.append("second"), note_not_recorded)
    importlib.import_module(f"{NAME}.part")
    assert seen == ["first", "second"]


def test_callback_may_import_the_module_itself() -> None:
    seen = []
    after_import(NAME, lambda module: seen.append(importlib.import_module(f"{NAME}.part").value), note_not_recorded)
    importlib.import_module(NAME)
    assert seen == [7]


def test_module_looks_as_it_would_without_the_hook() -> None:
    plain = importlib.import_module(NAME)
    expected = (
        type(plain.__loader__),
        type(plain.__spec__.loader),
        plain.__spec__.origin,
        plain.__file__,
        plain.__cached__,
    )
    expected_path = list(plain.__path__)
    del sys.modules[NAME]
    after_import(NAME, lambda module: None, note_not_recorded)
    module = importlib.import_module(NAME)
    found = (
        type(module.__loader__),
        type(module.__spec__.loader),
        module.__spec__.origin,
        module.__file__,
        module.__cached__,
    )
    assert found == expected
    assert list(module.__path__) == expected_path
    assert module.__loader__ is module.__spec__.loader


def test_features_of_the_import_system_keep_working() -> None:
    after_import(NAME, lambda module: None, note_not_recorded)
    module = importlib.import_module(NAME)
    assert importlib.resources.files(NAME).joinpath("data.txt").read_text() == "content"
    assert "class Point" in inspect.getsource(module)
    assert inspect.getsource(module.Point).startswith("class Point")
    assert type(pickle.loads(pickle.dumps(module.Point()))) is module.Point
    assert pickle.loads(pickle.dumps(module.__spec__)).name == NAME
    assert importlib.reload(module) is module


def test_a_spec_found_without_importing_works_as_usual() -> None:
    seen = []
    after_import(NAME, seen.append, note_not_recorded)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert seen == []
    assert spec.loader.get_filename(NAME) == spec.origin
    assert copy.copy(spec.loader).get_filename(NAME) == spec.origin
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert seen == [module]


def test_lazy_loader() -> None:
    seen = []
    after_import(NAME, lambda module: seen.append(module.__name__), note_not_recorded)
    spec = importlib.util.find_spec(NAME)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    assert seen == []
    assert module.executions == 1
    assert seen == [NAME]


def test_failing_callback_becomes_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    for name, value in RunSpec(tmp_path).added_to({}).items():
        monkeypatch.setenv(name, value)

    def fail(module: types.ModuleType) -> None:
        raise ValueError("no recorder today")

    seen = []
    after_import(NAME, fail, note_not_recorded)
    after_import(NAME, seen.append, note_not_recorded)
    module = importlib.import_module(NAME)
    assert seen == [module]
    (note,) = tmp_path.glob("not-recorded-*.json")
    assert "ValueError: no recorder today" in json.loads(note.read_text())["reason"]
    assert capfd.readouterr() == ("", "")


def test_failing_callback_without_a_trace_is_silent(capfd) -> None:
    after_import(NAME, lambda module: 1 / 0, note_not_recorded)
    importlib.import_module(NAME)
    assert capfd.readouterr() == ("", "")


def test_a_failed_import_raises_as_usual_and_the_next_one_calls_back(example: Path) -> None:
    source = (example / "__init__.py").read_text()
    (example / "__init__.py").write_text("raise RuntimeError('broken for now')\n")
    seen = []
    after_import(NAME, seen.append, note_not_recorded)
    with pytest.raises(RuntimeError, match="broken for now"):
        importlib.import_module(NAME)
    assert seen == []
    (example / "__init__.py").write_text(source)
    importlib.invalidate_caches()
    assert seen == [] and importlib.import_module(NAME) is seen[0]


def test_a_missing_module_raises_as_usual() -> None:
    after_import("hooked_and_missing", lambda module: None, note_not_recorded)
    with pytest.raises(ModuleNotFoundError, match="hooked_and_missing"):
        importlib.import_module("hooked_and_missing")


def test_module_that_replaces_itself(example: Path) -> None:
    (example / "__init__.py").write_text(
        "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(replaced=True)\n"
    )
    seen = []
    after_import(NAME, seen.append, note_not_recorded)
    importlib.import_module(NAME)
    assert seen[0].replaced


def test_threads_that_import_at_once_call_back_once(example: Path) -> None:
    (example / "__init__.py").write_text("import time\ntime.sleep(0.05)\n")
    seen = []
    after_import(NAME, seen.append, note_not_recorded)
    threads = [threading.Thread(target=importlib.import_module, args=(NAME,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1


def test_a_removed_callback_is_not_called() -> None:
    seen = []
    forget = after_import(NAME, lambda _: seen.append("first"), note_not_recorded)
    after_import(NAME, lambda _: seen.append("second"), note_not_recorded)
    forget()
    forget()
    importlib.import_module(NAME)
    assert seen == ["second"]
    forget()
