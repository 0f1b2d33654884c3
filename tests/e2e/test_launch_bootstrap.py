"""The bootstrap that starts recording inside the program's processes, in real processes with a tiny framework."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from determinism.launch.interpreter import BOOTSTRAP_FOLDER
from determinism.launch.program import child_environment
from determinism.launch.record import not_recorded_reasons, unrecorded_reason
from determinism.run_spec import EnablingRequest, FactorRequest, ProbeRequest, RunSpec

RECORDER = """
    import json, os, pathlib
    class Session:
        def __init__(self, folders, spec):
            self.folder = folders.claim(None)
            (self.folder / "process.json").write_text("{}")
            self.write("started", level=spec.level)
        def write(self, event, **facts):
            (self.folder / f"{event}-{os.getpid()}.json").write_text(json.dumps(facts))
        def close(self):
            self.write("closed")
        def forked(self):
            self.write("forked")
        def note_earlier_threads(self):
            pass
"""

# Takes the place of a user's own sitecustomize, so every test also shows that the user's is run.
HIDDEN = """
    import sys
    sys.hidden_ran = __name__, __file__
    from determinism.launch import child
    child.start({"tinyframe": "tiny_recording"})
"""


class Stage:
    """A folder of modules on PYTHONPATH, and a trace."""

    def __init__(self, folder: Path) -> None:
        self.modules = folder / "modules"
        self.trace = folder / "trace"
        (self.trace / "processes").mkdir(parents=True)
        self.modules.mkdir()
        self.add("tinyframe", "value = 3\n")
        self.add("tiny_recording", RECORDER)
        self.add("sitecustomize", HIDDEN)

    def add(self, name: str, text: str) -> None:
        (self.modules / f"{name}.py").write_text(textwrap.dedent(text))

    def environ(self, **extra: str) -> dict[str, str]:
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.modules), **extra}
        return child_environment(base, RunSpec(self.trace, level="module"))

    def run(self, code: str, *options: str, **extra: str) -> str:
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(code)],
            env=self.environ(**extra), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.stderr == ""
        assert done.returncode == 0
        return done.stdout

    def events(self, key: str) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in (self.trace / "processes" / key).glob("*-*.json"))

    def keys(self) -> list[str]:
        return sorted(path.name for path in (self.trace / "processes").iterdir())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_recorder_starts_with_the_framework_and_is_closed_at_exit(stage: Stage) -> None:
    assert stage.run("import tinyframe; print(tinyframe.value)") == "3\n"
    assert stage.keys() == ["main"]
    assert stage.events("main") == ["closed", "started"]
    (started,) = (stage.trace / "processes" / "main").glob("started-*")
    assert json.loads(started.read_text()) == {"level": "module"}
    assert unrecorded_reason(stage.trace) is None


def test_notes_on_sources_give_the_number_of_records_so_far(stage: Stage, tmp_path: Path) -> None:
    stage.add(
        "tiny_recording", textwrap.dedent(RECORDER).replace("class Session:", "class Session:\n    num_records = 2")
    )
    notes, program = tmp_path / "notes", tmp_path / "program.py"
    notes.mkdir()
    program.write_text(
        "import os, tinyframe, tiny_recording\nos.listdir('.')\ntiny_recording.Session.num_records = 7\nos.listdir('.')\n"
    )
    spec = RunSpec(stage.trace, level="module", probes=ProbeRequest(notes=notes))
    environment = child_environment({"PATH": os.environ["PATH"], "PYTHONPATH": str(stage.modules)}, spec)
    subprocess.run([sys.executable, program], env=environment, timeout=120, check=True)
    lines = [json.loads(line) for line in (notes / "main.jsonl").read_text().splitlines()]
    assert [(line["line"], line["records"]) for line in lines if line.get("source") == "listing"] == [(2, 2), (4, 7)]


def test_process_without_the_framework_claims_nothing(stage: Stage) -> None:
    stage.run("import json")
    assert stage.keys() == []
    reason = unrecorded_reason(stage.trace)
    assert reason is not None
    assert "no process that the recorder could reach imported torch" in reason


def test_hidden_sitecustomize_runs_under_its_own_name_and_file(stage: Stage) -> None:
    printed = stage.run("import sys, sitecustomize; print(sys.hidden_ran, sitecustomize.__file__)")
    path = str(stage.modules / "sitecustomize.py")
    assert printed == f"{('sitecustomize', path)} {path}\n"


def test_without_a_hidden_sitecustomize_the_program_sees_none(stage: Stage) -> None:
    (stage.modules / "sitecustomize.py").unlink()
    printed = stage.run("""
        import importlib.util, sys
        print("sitecustomize" in sys.modules, importlib.util.find_spec("sitecustomize"))
    """)
    assert printed == "False None\n"


@pytest.mark.parametrize("text", ["raise RuntimeError('mine')", "import a_module_that_is_missing", "1 +"])
def test_broken_hidden_sitecustomize_fails_as_it_does_without_recording(stage: Stage, text: str) -> None:
    stage.add("sitecustomize", text)
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(stage.modules)}
    command = [sys.executable, "-c", "print(1)"]
    expected = subprocess.run(command, env=plain, capture_output=True, check=False)
    found = subprocess.run(command, env=stage.environ(), capture_output=True, check=False)
    assert expected.stderr != b""
    assert (found.stdout, found.stderr, found.returncode) == (expected.stdout, expected.stderr, expected.returncode)


def test_usercustomize_keeps_working(stage: Stage, tmp_path: Path) -> None:
    stage.add("usercustomize", "import sys; sys.user_ran = True\n")
    code = "import site, sys; print(site.ENABLE_USER_SITE, getattr(sys, 'user_ran', False))"
    python = getattr(sys, "_base_executable", sys.executable)
    environ = stage.environ(HOME=str(tmp_path))
    done = subprocess.run([python, "-c", code], env=environ, capture_output=True, text=True, check=True)
    if done.stdout == "False False\n":
        pytest.skip("this Python has no folder of the user's own packages")
    assert done.stdout == "True True\n"


def test_module_search_path_is_the_programs_own(stage: Stage) -> None:
    code = "import sys, os; print(sys.path, [type(f).__name__ for f in sys.meta_path][-3:], os.environ['PYTHONPATH'])"
    found_path, *rest = stage.run(code).rpartition("] [")
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(stage.modules)}
    (stage.modules / "sitecustomize.py").unlink()
    expected = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True
    ).stdout
    assert found_path == expected.rpartition("] [")[0]
    assert rest[-1].strip().endswith(f"launch/bootstrap:{stage.modules}")


def test_without_the_request_only_the_hidden_sitecustomize_runs(stage: Stage) -> None:
    environ = stage.environ()
    del environ["DETERMINISM_RUN"]
    code = "import sys, tinyframe; print(hasattr(sys, 'hidden_ran'))"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert stage.keys() == []


def test_unreadable_request_does_not_disturb_the_program(stage: Stage) -> None:
    unknown = '{"recording": {"trace_folder": "/nowhere", "unknown": 1}}'
    for text in ("", "{", "[]", '{"recording": {', '{"recording": {"trace_folder": 3}}', unknown):
        environ = {**stage.environ(), "DETERMINISM_RUN": text}
        done = subprocess.run(
            [sys.executable, "-c", "import tinyframe"], env=environ, capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == ("", "")


def test_children_are_recorded_under_their_parents_key(stage: Stage) -> None:
    stage.run("""
        import subprocess, sys
        import tinyframe
        child = "import tinyframe"
        grandchild = f"import tinyframe, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        subprocess.run([sys.executable, "-c", child])
        subprocess.run([sys.executable, "-c", grandchild])
    """)
    assert stage.keys() == ["main", "main.1", "main.2", "main.2.1"]


def test_children_of_an_unrecorded_parent_are_numbered(stage: Stage) -> None:
    stage.run("""
        import subprocess, sys
        for _ in range(2):
            subprocess.run([sys.executable, "-c", "import tinyframe"])
    """)
    assert stage.keys() == ["main", "main-2"]


def test_session_is_notified_in_a_forked_child(stage: Stage) -> None:
    stage.run("""
        import os
        import tinyframe
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    """)
    assert stage.events("main") == ["closed", "forked", "started"]


@pytest.mark.parametrize(("method", "name"), [("spawn", "SpawnProcess-1"), ("forkserver", "ForkServerProcess-1")])
def test_multiprocessing_children_keep_their_multiprocessing_names(
    stage: Stage, method: str, name: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import multiprocessing, tinyframe
        def work(): pass
        if __name__ == "__main__":
            process = multiprocessing.get_context("{method}").Process(target=work)
            process.start(); process.join(); print(process.exitcode)
    """)
    )
    done = subprocess.run([sys.executable, program], env=stage.environ(), capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert stage.keys()[0] == "main"
    assert stage.keys()[1:] == [f"main.{name}"]


def test_failing_recorder_becomes_a_note(stage: Stage) -> None:
    stage.add("tiny_recording", "raise OSError('the recorder is broken')\n")
    assert stage.run("import tinyframe; print(tinyframe.value)") == "3\n"
    assert stage.keys() == []
    reason = unrecorded_reason(stage.trace)
    assert reason is not None
    assert "OSError: the recorder is broken" in reason


def test_session_that_fails_at_the_end_is_noted_silently(stage: Stage) -> None:
    stage.add("tiny_recording", RECORDER + "    Session.close = Session.forked = lambda self: 1 / 0\n")
    stage.run("import os, tinyframe\nif os.fork() == 0: os._exit(0)\nos.wait()")
    reasons = not_recorded_reasons(stage.trace)
    assert len(reasons) == 2
    assert all("ZeroDivisionError" in reason for reason in reasons)


def test_unsupported_version_of_torch_becomes_a_note(stage: Stage) -> None:
    stage.add("torch", "__version__ = '2.5.1+cpu'\n")
    stage.run("import torch")
    (reason,) = not_recorded_reasons(stage.trace)
    assert reason.startswith("torch 2.5.1+cpu is installed for")
    assert "2.6 up to, not including, 3.0" in reason


def test_interpreter_without_the_required_packages_is_noted(stage: Stage, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    code = "import tinyframe, sys, determinism.launch; print(tinyframe.value, any('src' in p for p in sys.path))"
    done = subprocess.run([python, "-c", code], env=stage.environ(), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("3 False\n", "")
    (reason,) = not_recorded_reasons(stage.trace)
    assert reason.startswith(f"{python} lacks numpy and pyarrow and xxhash")
    assert reason.endswith(f"{python} -m pip install numpy pyarrow xxhash")


def test_another_copy_of_the_package_on_the_path_is_not_used(stage: Stage) -> None:
    stage.add("determinism", "raise RuntimeError('another copy')\n")
    stage.run("import tinyframe")
    assert stage.keys() == ["main"]


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_isolated_process_is_not_recorded_but_its_child_is(stage: Stage, option: str) -> None:
    stage.run("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import tinyframe'])", option)
    assert stage.keys() == ["main"]


def test_startup_imports_almost_nothing(stage: Stage) -> None:
    (stage.modules / "sitecustomize.py").unlink()
    plain = {"PATH": os.environ["PATH"], "PYTHONPATH": str(stage.modules)}
    code = "import determinism, sys; print(*sys.modules)"
    before = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True).stdout
    modules = set(stage.run("import sys; print(*sys.modules)").split())
    assert not {"numpy", "pyarrow", "torch", "json", "dataclasses", "pathlib", "inspect", "typing", "re"} & modules
    assert {name for name in modules - set(before.split()) if not name.startswith("determinism")} <= {
        "importlib.machinery"
    }


def test_terminated_program_ends_as_without_recording(stage: Stage) -> None:
    code = "import tinyframe, time; print(1, flush=True); time.sleep(90)"
    process = subprocess.Popen([sys.executable, "-c", code], env=stage.environ(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
    assert time.monotonic() - started < 60
    process.stdout.close()
    assert stage.events("main") == ["started"]


def test_torchruns_agent_is_not_recorded(stage: Stage, tmp_path: Path) -> None:
    agent = tmp_path / "bin" / "torchrun"
    agent.parent.mkdir()
    agent.write_text("import tinyframe, subprocess, sys; subprocess.run([sys.executable, '-c', 'import tinyframe'])")
    subprocess.run([sys.executable, agent], env=stage.environ(), check=True)
    assert stage.keys() == ["main"]


def newer_syntax(tree: ast.AST) -> list[str]:
    """Return the parts of a syntax tree that Python 2.7 cannot parse."""
    newer = (
        ast.JoinedStr,
        ast.AnnAssign,
        ast.Nonlocal,
        ast.NamedExpr,
        ast.YieldFrom,
        ast.Starred,
        ast.Match,
        ast.AsyncFunctionDef,
    )
    found = [type(node).__name__ for node in ast.walk(tree) if isinstance(node, newer)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.returns or node.args.kwonlyargs or node.args.posonlyargs):
            found.append(f"signature of {node.name}")
        elif isinstance(node, ast.arg) and node.annotation:
            found.append(f"annotation of {node.arg}")
        elif isinstance(node, ast.Raise) and node.cause:
            found.append("raise from")
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            found.append("a future import")
        elif isinstance(node, ast.ClassDef) and node.keywords:
            found.append(f"keywords of {node.name}")
    return found


@pytest.mark.parametrize("name", ["notes.py", "bootstrap/sitecustomize.py"])
def test_code_run_by_every_interpreter_has_only_syntax_of_python_2_7(name: str) -> None:
    text = (BOOTSTRAP_FOLDER.parent / name).read_text()
    assert newer_syntax(ast.parse(text)) == []
    assert text.isascii(), "Python 2.7 refuses other characters where no encoding is declared"
    assert newer_syntax(ast.parse("def f(a: int): print(f'{a}')"))


def old_interpreters() -> list[str]:
    """Return the interpreters on this machine that are too old to record, from PATH and pyenv."""
    names = [f"python{version}" for version in ("2.7", "3.5", "3.6", "3.7", "3.8", "3.9", "3.10")]
    found = [path for name in names if (path := shutil.which(name)) and "shims" not in path]
    return found + [str(path) for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")]


def test_child_of_an_older_python_prints_nothing_and_is_noted(stage: Stage) -> None:
    (stage.modules / "sitecustomize.py").write_text("import sys; sys.hidden_ran = True\n")
    interpreters = old_interpreters()
    spec = RunSpec(enabling=EnablingRequest(), factors=FactorRequest({}), probes=ProbeRequest())
    for interpreter in interpreters:
        done = subprocess.run(
            [interpreter, "-c", "import sys; print(sys.hidden_ran)"],
            env=spec.added_to(stage.environ()), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", ""), interpreter
    reasons = not_recorded_reasons(stage.trace)
    assert len(reasons) == len(interpreters)
    assert all("recording needs 3.11 or newer" in reason for reason in reasons)


def test_too_old_interpreter_is_noted_silently(stage: Stage) -> None:
    (stage.modules / "sitecustomize.py").write_text("import sys; sys.hidden_ran = True\n")
    # Simulates an old interpreter, since this machine may not have one.
    stage.run(
        f"""
        import sys
        sys.version_info = (3, 8, 10)
        sys.path.insert(0, {str(BOOTSTRAP_FOLDER)!r})
        import sitecustomize
        assert sys.hidden_ran
        assert "determinism" not in sys.modules
        """,
        "-S",
    )
    (reason,) = not_recorded_reasons(stage.trace)
    assert "is Python 3.8; recording needs 3.11 or newer" in reason
