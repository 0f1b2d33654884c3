"""The check of the program's interpreter before the first run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from determinism.errors import LaunchError
from determinism.launch import interpreter
from determinism.launch.interpreter import check_interpreter, with_python

ENVIRON = {"PATH": os.environ["PATH"]}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_interpreter_with_the_packages() -> None:
    assert check_interpreter([sys.executable, "train.py"], ENVIRON) is None


def test_interpreter_without_the_packages(bare_python: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        check_interpreter([str(bare_python), "train.py"], ENVIRON)
    assert caught.value.identifier == "interpreter-lacks-packages"
    assert "lacks numpy and pyarrow and xxhash" in caught.value.message
    assert caught.value.lines[-1] == f"'{bare_python}' -m pip install numpy pyarrow xxhash"


def test_interpreter_with_incompatible_packages(bare_python: Path, tmp_path: Path) -> None:
    for name in ("numpy", "xxhash"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "pyarrow.py").write_text('raise ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")')
    with pytest.raises(LaunchError, match=r"cannot import .* found 1\.26\.4\.") as caught:
        check_interpreter([str(bare_python), "train.py"], {**ENVIRON, "PYTHONPATH": str(tmp_path)})
    assert caught.value.lines[-1] == f"'{bare_python}' -m pip install 'pyarrow<26'"


def test_interpreter_found_on_path(bare_python: Path) -> None:
    with pytest.raises(LaunchError, match="lacks"):
        check_interpreter(["python", "train.py"], {"PATH": str(bare_python.parent)})


@pytest.mark.parametrize("line", ["#!{python}", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''"])
def test_script_that_leads_to_python(line: str, bare_python: Path, tmp_path: Path) -> None:
    # The plain form cannot express a path with a space, so it gets a link to the interpreter without one.
    (tmp_path / "env").symlink_to(bare_python.parent.parent)
    python = tmp_path / "env" / "bin" / "python"
    console_script = script(tmp_path / "train", line.format(python=python) + "\nprint()\n")
    with pytest.raises(LaunchError, match="lacks"):
        check_interpreter([str(console_script)], ENVIRON)


@pytest.mark.parametrize("words", ["python3", "-S python3 -u", "-S VALUE=1 python3"])
def test_script_that_asks_env_for_python(words: str, bare_python: Path, tmp_path: Path) -> None:
    console_script = script(tmp_path / "train", f"#!/usr/bin/env {words}\nprint()\n")
    with pytest.raises(LaunchError, match="lacks"):
        check_interpreter([str(console_script)], {"PATH": str(bare_python.parent)})


@pytest.mark.parametrize(
    ("options", "named"),
    [("-I", "-I"), ("-S", "-S"), ("-uE", "-E"), ("-X dev -S", "-S"), ("-W error -B -I", "-I"), ("-Xdev -IS", "-I -S")],
)
def test_options_that_hide_the_recorder(options: str, named: str) -> None:
    warning = check_interpreter([sys.executable, *options.split(), "train.py"], ENVIRON)
    assert warning is not None
    assert warning.startswith(f"{named} in the command hides the recorder from {sys.executable}")


@pytest.mark.parametrize(
    "options", ["-u", "-m module -I", "-c pass -S", "-mI", "train.py -E", "-X S", "-W I", "- -I", ""]
)
def test_options_that_hide_nothing(options: str) -> None:
    assert check_interpreter([sys.executable, *options.split()], ENVIRON) is None


def test_script_with_hiding_option(tmp_path: Path) -> None:
    console_script = script(tmp_path / "train", f"#!{sys.executable} -E\n")
    assert "-E" in check_interpreter([str(console_script)], ENVIRON)


@pytest.mark.parametrize("text", ["#!/bin/sh\nexec true\n", "\x7fELF", "", "#!", "#!/usr/bin/env\n", "#!'unbalanced\n"])
def test_other_programs_are_left_alone(text: str, tmp_path: Path) -> None:
    assert check_interpreter([str(script(tmp_path / "wrapper", text))], ENVIRON) is None


def test_a_program_named_python_that_is_not_python(tmp_path: Path) -> None:
    for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n", ""):
        assert check_interpreter([str(script(tmp_path / "python3", text)), "train.py"], ENVIRON) is None


def test_interpreter_that_is_too_old(tmp_path: Path) -> None:
    old = script(tmp_path / "python3", '#!/bin/sh\necho \'["3.8", ["pyarrow"], []]\'\n')
    with pytest.raises(LaunchError, match=r"is Python 3\.8.*needs 3\.11 or newer") as caught:
        check_interpreter([str(old), "train.py"], ENVIRON)
    assert caught.value.identifier == "interpreter-too-old"


def missing(name: str, environ: dict[str, str] = ENVIRON) -> str:
    with pytest.raises(LaunchError) as caught:
        check_interpreter([name], environ)
    assert caught.value.identifier == "command-missing"
    return caught.value.message


def test_missing_command_names_near_matches(tmp_path: Path) -> None:
    script(tmp_path / "trainer", "#!/bin/sh\n")
    message = missing("trianer", {"PATH": f"{tmp_path}:/nowhere"})
    assert message == "'trianer' is not on PATH, so nothing was started. Similar names on PATH: trainer."


def test_missing_command_without_near_matches() -> None:
    assert "'no-such-command-at-all' is not on PATH" in missing("no-such-command-at-all")
    assert "'./nowhere/train' does not exist" in missing("./nowhere/train")
    assert (
        f"'trian.py' does not exist, so nothing was started. Check the spelling; the current folder is {os.getcwd()}."
        == missing("trian.py")
    )


def test_a_script_is_run_with_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path(sys.executable).parent
    Path("train.py").write_text("print()\n")
    other = script(tmp_path / "bin" / "python", "#!/bin/sh\n")
    monkeypatch.setattr(interpreter, "_FRAMEWORKS", ("a_framework_that_is_nowhere",))
    assert with_python(["train.py", "-v"], {"PATH": str(other.parent)}) == [str(other), "train.py", "-v"]
    assert with_python(["./train.py"], {"PATH": str(tmp_path / "empty")}) == [sys.executable, "./train.py"]
    monkeypatch.setattr(interpreter, "_FRAMEWORKS", ("json",))
    assert with_python(["train.py"], {"PATH": str(other.parent)}) == [sys.executable, "train.py"]
    if (own / "python").exists():
        assert with_python(["train.py"], {"PATH": f"{own}:{other.parent}"}) == ["python", "train.py"]


def test_a_script_with_its_own_interpreter_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "train.py", "#!/usr/bin/env python3\n")
    script(tmp_path / "bin" / "eval.py", "#!/bin/sh\n")
    Path("eval.py").write_text("print()\n")
    script(tmp_path / "bare.py", "print()\n")
    for command in (["./train.py"], ["python", "train.py"], ["nowhere.py"], ["eval.py"], []):
        assert with_python(command, {"PATH": str(tmp_path / "bin")}) == command
    assert with_python(["./bare.py"], {"PATH": ""})[1:] == ["./bare.py"]


def test_script_without_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print()\n")
    Path("run.sh").write_text("true\n")
    assert "To run this script: python train.py" in missing("train.py")
    assert "'./train.py' is not executable" in missing("./train.py")
    assert "chmod +x ./run.sh" in missing("run.sh")
    assert "is a folder" in missing(str(tmp_path))
