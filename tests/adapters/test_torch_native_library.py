"""The library of the native recorder: it is built once, used on tested platforms, and its absence has a reason."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from determinism.frameworks.torch import native_library as library
from determinism.frameworks.torch.native_recorder import recorder_for
from determinism.launch import record
from determinism.types import Level
from tests.torch_runs import compare_program


@pytest.fixture(autouse=True)
def choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the choices of the environment, so that only the test chooses."""
    monkeypatch.delenv("DETERMINISM_RECORDER", raising=False)
    monkeypatch.delenv("CXX", raising=False)


def pytorch(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Pretend that a different PyTorch is installed, on a tested Python and machine."""
    found = library._pytorch()
    monkeypatch.setattr(library, "_pytorch", lambda: found._replace(**facts))
    monkeypatch.setattr(platform, "python_version", lambda: "3.11.7")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def why_not_native() -> str:
    """The reason why a session would use the Python recorder."""
    recorder, reason = recorder_for(Level.OP, paranoid=False)
    assert (recorder.name == "native") == (not reason)
    return reason


@pytest.mark.native_recorder
def test_the_python_recorder_takes_over_and_the_report_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "find", lambda: None)
    monkeypatch.setenv("DETERMINISM_RECORDER", "native")
    comparison = compare_program(lambda: torch.ones(3) + 1, tmp_path)

    ((name, reason),) = comparison.recorded.recorders
    assert name == "python"
    assert reason.startswith("it has not been built for PyTorch ")
    assert reason.endswith(" -m determinism.frameworks.torch.native_library builds it")


@pytest.mark.native_recorder
def test_the_native_recorder_is_used_on_a_tested_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "TESTED", (library._minor(torch.__version__),))
    monkeypatch.setattr(library, "TESTED_PYTHON", (library._minor(platform.python_version()),))
    monkeypatch.setattr(library, "_X86_64", (platform.machine(),))
    monkeypatch.setattr(library, "_DEVICE_FILES", tmp_path)
    assert why_not_native() == ""


@pytest.mark.parametrize(
    ("facts", "python", "machine", "named"),
    [
        ({"version": "2.5.1+cpu"}, "3.11.7", "x86_64", "this is PyTorch 2.5.1+cpu"),
        ({"version": "2.130.0"}, "3.11.7", "x86_64", "this is PyTorch 2.130.0"),
        ({"version": "2.13.0"}, "3.14.0", "x86_64", "Python 3.14.0"),
        ({"version": "2.13.0"}, "3.11.7", "aarch64", "on aarch64"),
    ],
)
def test_on_an_untested_platform_it_must_be_requested(
    facts: dict[str, Any], python: str, machine: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch(monkeypatch, **facts)
    monkeypatch.setattr(platform, "python_version", lambda: python)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    reason = why_not_native()
    assert named in reason
    assert reason.endswith("DETERMINISM_RECORDER=native chooses it anyway")


@pytest.mark.parametrize(
    ("drives", "file", "is_tested"),
    [
        (("hip",), "kfd", False),
        (("hip",), "kfd-old", True),
        (("hip",), None, True),
        ((), "kfd", True),
        # NVIDIA's device file.
        ((), "nvidia0", True),
        (("xpu",), "dri/renderD128", False),
    ],
)
def test_if_pytorch_may_use_an_untested_gpu_it_must_be_requested(
    drives: tuple[str, ...], file: str | None, is_tested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch(monkeypatch, version="2.13.0", drives=drives)
    monkeypatch.setattr(library, "_DEVICE_FILES", tmp_path)
    if file is not None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    if is_tested:
        library.check_tested()
    else:
        assert "not tested with GPUs of AMD and Intel" in why_not_native()


def test_it_is_not_used_if_another_or_an_unknown_recorder_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETERMINISM_RECORDER", "python")
    assert why_not_native() == "DETERMINISM_RECORDER=python chooses it"
    monkeypatch.setenv("DETERMINISM_RECORDER", "rust")
    assert why_not_native() == "DETERMINISM_RECORDER is rust, which is neither native nor python"


COMPILER = """#!{python}
import os, sys, time
with open({log!r}, "a") as log:
    print(sys.argv[-1], file=log)
time.sleep(0.2)
open(sys.argv[sys.argv.index("-o") + 1], "wb").close()
"""


def compiler(folder: Path, code: str) -> Path:
    """Write an executable that acts as the compiler."""
    path = folder / "g++"
    path.write_text(code)
    path.chmod(0o755)
    return path


def start_building(tmp_path: Path, path: Path, *, choice: str = "native") -> subprocess.Popen[str]:
    """Start the build as the launcher does before a program, with a separate cache and only the compilers of one folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(path)}
    environment["DETERMINISM_RECORDER"] = choice
    builder = str(Path(record.__file__).with_name("inspection_child.py"))
    return subprocess.Popen([sys.executable, builder, "--build"], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.native_recorder
def test_two_processes_that_start_together_build_it_once(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "bin"
    folder.mkdir()
    compiler(folder, COMPILER.format(python=sys.executable, log=str(log)))
    both = [start_building(tmp_path, folder) for _ in range(2)]
    said = [process.communicate()[1] for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert sorted("Building the native recorder" in text for text in said) == [False, True], said
    assert sorted("Built it in" in text for text in said) == [False, True]
    num_files = len(library._INSTRUCTIONS) + 1
    assert len(log.read_text().splitlines()) == num_files + 1
    built = [
        path for path in (tmp_path / "cache" / "determinism" / "native").iterdir() if not path.name.startswith(".")
    ]
    assert [path.suffix for path in built] == [".so"]


@pytest.mark.native_recorder
def test_a_wheel_folder_keeps_libraries_of_other_versions_but_not_of_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(folder: Path, tools: Any, say: Callable[[str], None]) -> Path:
        (folder / "made.so").touch()
        return folder / "made.so"

    monkeypatch.setattr(library, "_compile", compiled)
    kept = tmp_path / f"torch-2.99.0-cpython-399-x86_64-linux-gnu-{library._sources()}.so"
    for path in (kept, tmp_path / "torch-2.99.0-cpython-399-x86_64-linux-gnu-0123456789ab.so"):
        path.touch()
    built = library.build(print, tmp_path)

    assert set(tmp_path.glob("*.so")) == {kept, built}


def test_the_reason_for_a_failed_build_is_printed_if_it_was_requested(tmp_path: Path) -> None:
    process = start_building(tmp_path, tmp_path)

    assert "The native recorder cannot be built: no C++ compiler was found" in process.communicate()[1]
    assert process.returncode == 3


def test_nothing_is_printed_if_it_cannot_be_built_and_was_not_requested(tmp_path: Path) -> None:
    process = start_building(tmp_path, tmp_path, choice="")

    assert process.communicate()[1] == ""
    assert process.returncode == 3


BROKEN = """#!{python}
import sys
open({log!r}, "a").write("asked\\n")
sys.exit("observer.cpp:1: error: no such thing")
"""


@pytest.mark.native_recorder
def test_a_compiler_that_failed_is_not_tried_again_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    path = compiler(tmp_path, BROKEN.format(python=sys.executable, log=str(log)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    for again in (False, False, True):
        with pytest.raises(library.NotNative, match=r"g\+\+ failed: observer\.cpp:1: error: no such thing"):
            library.build(said.append, again=again)
    assert log.read_text().split() == ["asked"] * 2
    assert sum("Building the native recorder" in line for line in said) == 2
    with pytest.raises(library.NotNative, match=r"g\+\+ failed: .* -m determinism.* tries again"):
        library.load()

    # A different compiler is tried.
    path.rename(tmp_path / "clang++")
    with pytest.raises(library.NotNative, match=r"clang\+\+ failed"):
        library.build(said.append, again=False)


def test_a_failed_build_is_reported_before_the_program_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*arguments: Any, **keywords: Any) -> Path:
        raise library.BuildFailed("g++ failed: an error")

    pytorch(monkeypatch, version="2.13.0", drives=())
    monkeypatch.setattr(library, "build", failing)
    assert library.prepare() == 3
    assert capsys.readouterr().err == (
        "determinism: The native recorder cannot be built: g++ failed: an error. "
        "Ops are recorded in Python, which takes longer.\n"
    )


@pytest.mark.native_recorder
def test_an_interrupted_build_leaves_no_library(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler(tmp_path, COMPILER.format(python=sys.executable, log=str(log)).replace("0.2", "60"))
    process = start_building(tmp_path, tmp_path)
    while not log.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text = process.communicate()[1]

    assert process.returncode == 130
    assert "Traceback" not in text
    assert [path.name for path in (tmp_path / "cache" / "determinism" / "native").iterdir()] == [".lock"]


def test_a_library_that_other_users_can_write_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "determinism" / "native"
    folder.mkdir(parents=True, mode=0o700)
    path = folder / f"{library._key()}.so"
    path.write_bytes(b"")
    path.chmod(0o600)
    assert library.find() == path
    path.chmod(0o666)
    assert library.find() is None


def test_a_library_for_a_different_version_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = library._key()
    found = library._pytorch()
    monkeypatch.setattr(library, "_pytorch", lambda: found._replace(version="2.99.0"))
    library._key.cache_clear()
    try:
        assert library._key() != key
    finally:
        library._key.cache_clear()


def test_it_knows_the_version_of_pytorch_without_importing_it() -> None:
    found = library._pytorch()
    assert (found.version, found.git) == (torch.__version__, torch.version.git_version)
    assert found.root == Path(torch.__file__).parent
    assert library._string_abi(found.root) == int(torch._C._GLIBCXX_USE_CXX11_ABI)
