"""The owner of the code that a frame runs."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from pathlib import Path
from types import FrameType

import pytest

import determinism
from determinism.source_files import Owner, owner_of, owner_of_file

STDLIB = sysconfig.get_path("stdlib")


def frame_of(file: str, module: str) -> FrameType:
    """A frame of a module that was read from a file."""
    scope: dict[str, object] = {"__name__": module}
    exec(compile("import sys\nframe = (lambda: sys._getframe())()", file, "exec"), scope)
    frame = scope["frame"]
    assert isinstance(frame, FrameType)
    return frame


@pytest.mark.parametrize(
    ("file", "module", "owner"),
    [
        ("/home/ada/train.py", "__main__", Owner.USER),
        ("/home/ada/models/net.py", "models.net", Owner.USER),
        ("/home/ada/test.py", "test", Owner.USER),
        (f"{STDLIB}/json/decoder.py", "json.decoder", Owner.FOREIGN),
        (f"{STDLIB}/runpy.py", "__main__", Owner.FOREIGN),
        ("/home/ada/venv/lib/python3.11/site-packages/torch/nn/functional.py", "torch.nn.functional", Owner.FOREIGN),
        ("/home/ada/venv/lib/python3.11/site-packages/numpy/core.py", "numpy.core", Owner.FOREIGN),
        ("/home/ada/venv/lib/python3.11/site-packages/tqdm/std.py", "tqdm.std", Owner.LIBRARY),
        (f"{STDLIB}/site-packages/tqdm/std.py", "tqdm.std", Owner.LIBRARY),
        ("<string>", "__main__", Owner.USER),
        ("<string>", "dataclasses", Owner.FOREIGN),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap", Owner.FOREIGN),
    ],
)
def test_owner(file: str, module: str, owner: Owner) -> None:
    assert owner_of(frame_of(file, module)) is owner


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/ada/train.py", Owner.USER),
        ("/home/ada/random.py", Owner.USER),
        (f"{STDLIB}/random.py", Owner.FOREIGN),
        ("/home/ada/venv/lib/python3.11/site-packages/keras/src/layers/core/dense.py", Owner.FOREIGN),
        ("/home/ada/venv/lib/python3.11/site-packages/tqdm/std.py", Owner.LIBRARY),
        (f"{Path(determinism.__file__).parent}/frameworks/wrapping.py", Owner.FOREIGN),
    ],
)
def test_the_owner_if_only_the_file_is_known(file: str, owner: Owner) -> None:
    assert owner_of_file(file) is owner


def test_folder_that_packages_were_installed_to_holds_libraries(tmp_path: Path) -> None:
    frame = frame_of(str(tmp_path / "tqdm" / "std.py"), "tqdm.std")
    (tmp_path / "tqdm-4.0.dist-info").mkdir()

    assert owner_of(frame) is Owner.LIBRARY
    assert owner_of(frame_of(str(tmp_path / "other" / "code.py"), "code.of.mine")) is Owner.USER


def test_a_file_deep_in_a_package_belongs_to_the_folder_that_the_package_was_installed_to(tmp_path: Path) -> None:
    file = tmp_path / "layers" / "internal" / "draws.py"
    file.parent.mkdir(parents=True)
    for folder in (file.parent, file.parent.parent):
        (folder / "__init__.py").touch()
    assert owner_of_file(str(file)) is Owner.USER

    installed = tmp_path / "target"
    (installed / "layers-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "layers").rename(installed / "layers")
    assert owner_of_file(str(installed / "layers" / "internal" / "draws.py")) is Owner.LIBRARY


def test_code_that_an_installed_package_generated_belongs_to_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch Geometric, for example, writes the propagation of each kind of layer into a file in the temporary folder."""
    generated = frame_of("/tmp/layers.conv_propagate_e9qt1cvw.py", "layers.conv_propagate")
    package = types.ModuleType("layers")
    monkeypatch.setitem(sys.modules, "layers", package)

    package.__file__ = "/venv/lib/python3.11/site-packages/layers/__init__.py"
    assert owner_of(generated) is Owner.LIBRARY
    package.__file__ = "/home/ada/layers/__init__.py"
    assert owner_of(generated) is Owner.USER


def test_package_started_as_a_module_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name="trainer.cli")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)

    assert owner_of(frame_of("/venv/lib/python3.11/site-packages/trainer/loop.py", "trainer.loop")) is Owner.USER
    assert owner_of(frame_of("/venv/lib/python3.11/site-packages/tqdm/std.py", "tqdm.std")) is Owner.LIBRARY


def test_package_started_by_a_console_script_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    script = os.path.join(sysconfig.get_path("scripts"), "train")
    main = types.ModuleType("__main__")
    main.__spec__ = None
    main.__file__ = script
    called = types.FunctionType((lambda: None).__code__, {"__name__": "trainer.cli"})
    called.__module__ = "trainer.cli"
    main.main = called  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)

    assert owner_of(frame_of("/venv/lib/python3.11/site-packages/trainer/loop.py", "trainer.loop")) is Owner.USER
    assert owner_of(frame_of(script, "__main__")) is Owner.LIBRARY
