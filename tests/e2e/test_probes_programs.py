"""A program behaves the same with and without probes: output, errors, exit status, introspection, files."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from determinism.launch.program import with_bootstrap
from determinism.run_spec import EnablingRequest, ProbeRequest, RunSpec
from tests.e2e.probing import Ended, Stage, documents
from tests.e2e.running import PROGRAMS

ABOUT_ITSELF = '''
    """What the program is for."""
    from __future__ import annotations
    import dataclasses, inspect, pickle, sys, traceback, types, typing, warnings
    import helper
    from collections import namedtuple
    print(__doc__, __file__, __name__, __spec__, __package__, type(__loader__), __loader__.name, __loader__.path)
    print(__cached__, sys.path[0], sys.argv, list(globals()), [n for n in dir() if "determinism" in n])
    print(helper.__file__, type(helper.__loader__), helper.__spec__.origin, list(vars(helper)))
    Point = namedtuple("Point", "x y")

    @dataclasses.dataclass
    class Config:
        """A class."""
        name: str = "a"
        sizes: typing.List[int] = dataclasses.field(default_factory=list)
        def __post_init__(self):
            super().__init__()
            self.__hidden = helper.double(2)
        def hidden(self):
            return self.__hidden, __class__

    def generator(n):
        """Counts."""
        got = yield from helper.count(n)
        return got

    print(inspect.getsource(Config.hidden), inspect.signature(generator), generator.__doc__, typing.get_type_hints(Config))
    print(pickle.loads(pickle.dumps(Config())) == Config(), pickle.loads(pickle.dumps(Point(1, 2))), Point.__module__)
    print(list(generator(3)), Config().hidden(), eval("1 + helper.double(1)"), sorted(locals()) == sorted(globals()))
    def scopes(a, *b, c=1, **d):
        e = [a for a in b]
        return locals(), sorted(vars()), [x for x in dir()]
    print(scopes(1, 2, 3, f=4), scopes.__code__.co_varnames, scopes.__code__.co_firstlineno)
    match Point(1, 2):
        case Point(x=1, y=y) if helper.double(y) == 4:
            print(y)
    print(f"{helper.double(3)!r:>5} {'|'.join(map(str, [1, 2]))}", end="\\n", flush=True)
    a, (b, *c) = 1, helper.three()
    print(a, b, c, *c, {**{"k": 1}}, (lambda *z: z)(*c), (n := helper.double(4)), n)
    try:
        helper.double()
    except TypeError as error:
        print(error)
    try:
        {}["key"]
    except KeyError:
        traceback.print_exc()
    warnings.warn("this way")
    def within():
        warnings.warn("that way", stacklevel=2)
    within()
    async def main():
        return [await helper.later(x) async for x in helper.each()]
    import asyncio
    print(asyncio.run(main()))
    def chain(x):
        return (
            x
            .append(1)
            .nothing(
                helper.double(2),
            )
        )
    if __name__ == "__main__":
        chain([])
'''
HELPER = """
    def double(x):
        return x * 2
    def count(n):
        yield from range(n)
        return n
    def three():
        return 1, 2, 3
    async def later(x):
        return x + 1
    async def each():
        for x in (1, 2):
            yield x
    def fail():
        raise ValueError("no")
"""


def same(stage: Stage, *command: str, **environment: str) -> Ended:
    """Return how a command ends; assert that it ends in the same way with probes and without."""
    environment = {"PYTHONHASHSEED": "0", **environment}
    plain = stage.plain(*command, **environment)
    notes = stage.folder.parent / "notes"
    notes.mkdir(exist_ok=True)
    probed = stage.probed(*command, request=ProbeRequest(notes=notes), **environment)
    assert probed == plain
    assert [one for one in documents(notes) if "unprobed" in one] == []
    return plain


def test_introspection_gives_the_same_with_probes(tmp_path: Path) -> None:
    ended = same(Stage(tmp_path, ABOUT_ITSELF, helper=HELPER))

    assert ended.status == 1
    assert "AttributeError: 'NoneType' object has no attribute 'nothing'" in ended.stderr
    assert "KeyError" in ended.stderr


@pytest.mark.parametrize("script", ["main.py", "./main.py", "../program/main.py", "link.py"])
def test_path_of_the_script_stays_as_it_was_given(tmp_path: Path, script: str) -> None:
    stage = Stage(tmp_path, "import sys\nprint(__file__, sys.argv, sys.path[0], sys.path[1:3])\n")
    (tmp_path / "elsewhere").mkdir()
    (stage.folder / "link.py").symlink_to(tmp_path / "elsewhere" / "real.py")
    shutil.copy(stage.main, tmp_path / "elsewhere" / "real.py")

    assert same(stage, sys.executable, script, "--flag").status == 0


ENDINGS = {
    "sys.exit(3)": 3,
    "sys.exit('a reason')": 1,
    "raise SystemExit": 0,
    "import helper; helper.fail()": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "raise ExceptionGroup('many', [ValueError(1)])": 1,
    "sys.excepthook = lambda *a: print('hook', a[0], a[2].tb_lineno); 1 / 0": 1,
    "import threading; threading.Thread(target=lambda: print('late')).start()": 0,
    "import atexit; atexit.register(print, 'bye'); 1 / 0": 1,
    "import os; os._exit(7)": 7,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "def f(:": 1,
    "import broken": 1,
    "import missing": 1,
    "try:\\n    1 / 0\\nexcept Exception as e:\\n    raise RuntimeError('then') from e": 1,
}


@pytest.mark.parametrize("code", ENDINGS)
def test_program_ends_in_the_same_way_with_probes(tmp_path: Path, code: str) -> None:
    text = "import sys\n" + code.replace("\\n", "\n") + "\n"

    assert same(Stage(tmp_path, text, helper=HELPER, broken="def f(:\n")).status == ENDINGS[code]


def test_modules_started_by_name_are_probed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "")
    package = stage.folder / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys, time\nprint(__name__, __spec__.name, sys.argv[1:])\ntime.time()\n"
    )
    same(stage, sys.executable, "-m", "trainer", "x")

    assert [one["line"] for one in documents(stage.noted(sys.executable, "-m", "trainer")) if "digest" in one] == [3]


def test_modules_loaded_from_files_are_probed(tmp_path: Path) -> None:
    program = """
        import importlib.util, importlib, sys
        spec = importlib.util.spec_from_file_location("config", "config.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        print(module.__name__, module.__file__, type(module.__loader__), module.value)
        import config
        print(importlib.reload(config).value)
    """
    stage = Stage(tmp_path, program, config="value = list({'a', 'b', 'c'})\n")
    same(stage)

    assert {one["file"] for one in documents(stage.noted()) if "digest" in one} == {str(stage.folder / "config.py")}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_with_probes(tmp_path: Path, method: str) -> None:
    program = f"""
        import multiprocessing
        class Job:
            def __init__(self, n):
                self.n = n
            def run(self):
                return self.n + 1
        def work(job):
            return job.run(), __name__ in ("__main__", "__mp_main__"), __file__
        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                print(pool.map(work, [Job(1), Job(2)]))
    """
    assert "(2, True" in same(Stage(tmp_path, program)).stdout


def test_caches_are_neither_written_nor_read(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path, "import helper\nprint(helper.words())\n", helper="def words():\n    return list({'a', 'b'})\n"
    )
    writing = {"PYTHONDONTWRITEBYTECODE": ""}
    noted = documents(stage.noted(**writing))
    assert [one["file"] for one in noted if "digest" in one] == [str(stage.folder / "helper.py")]
    assert not (stage.folder / "__pycache__").exists()
    stage.plain(**writing)
    [cache] = (stage.folder / "__pycache__").iterdir()
    before = cache.read_bytes(), cache.stat().st_mtime_ns

    assert len([one for one in documents(stage.noted(**writing)) if "digest" in one]) == 1
    assert (cache.read_bytes(), cache.stat().st_mtime_ns) == before


def test_standard_library_and_installed_packages_are_not_probed(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "library.py").write_text("def words():\n    return list({'a', 'b'})\n")
    stage = Stage(tmp_path, "import library, json, random\nlibrary.words()\nprint(json.dumps({1: 2}))\n")

    assert [
        one
        for one in documents(stage.noted(PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}"))
        if "source" in one
    ] == []


def test_package_of_a_console_script_is_probed(tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", symlinks=True)
    folder = tmp_path / "environment" / "bin"
    stage = Stage(tmp_path, "", trainer_package="def main():\n    print(list({'a', 'b'}))\n")
    script = folder / "train"
    script.write_text(f"#!{folder / 'python'}\nfrom trainer_package import main\nmain()\n")
    script.chmod(0o755)
    path = os.pathsep.join([str(stage.folder), os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")])

    assert [one["line"] for one in documents(stage.noted(str(script), PYTHONPATH=path)) if "digest" in one] == [2]


def test_framework_that_launches_the_program_is_not_probed(tmp_path: Path) -> None:
    framework = tmp_path / "installed" / "site-packages" / "torch"
    framework.mkdir(parents=True)
    (framework / "__init__.py").write_text("import os\nos.getpid()\n")
    (framework / "run.py").write_text("import os, runpy\nos.getpid()\nrunpy.run_path('main.py')\n")
    stage = Stage(tmp_path, "import os\n\n\nos.getpid()\n")
    path = os.pathsep.join([str(framework.parent), os.environ.get("PYTHONPATH", "")])
    noted = documents(stage.noted(sys.executable, "-m", "torch.run", PYTHONPATH=path))

    assert [(os.path.basename(one["file"]), one["line"]) for one in noted if "digest" in one] == [("main.py", 4)]


def test_code_not_loaded_from_source_is_reported_as_unprobed(tmp_path: Path) -> None:
    import py_compile

    from determinism.diagnose.sources import unprobed_modules

    stage = Stage(tmp_path, "import compiled\nprint(compiled.value)\n", compiled="value = 1\n")
    source = stage.folder / "compiled.py"
    py_compile.compile(str(source), str(stage.folder / "compiled.pyc"))
    source.unlink()
    [found] = unprobed_modules(stage.noted())

    assert (found.module, found.file) == ("compiled", str(stage.folder / "compiled.pyc"))
    assert "SourcelessFileLoader" in found.reason


COMPILED = """
    import torch
    def through(x, functions):
        for function in functions:
            x = function(x)
        return x
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.sizes = {"a": 1}
        def forward(self, x):
            first, second = through(self.linear(x), [torch.relu, torch.sin]).chunk(2)
            parts = [part.cos() for part in (first, second)]
            return torch.cat(parts) + sum(v for k, v in self.sizes.items()) + len({1, 2})
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 4)
    print(compiled(x).sum().item(), torch._dynamo.utils.counters)
    scripted = torch.jit.script(through_one := model.linear)
    print(scripted(x).sum().item())
    print(torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2))).code)
"""


@pytest.mark.thorough("probes")
@pytest.mark.filterwarnings("ignore")
def test_probes_do_not_change_the_graphs_of_compiled_functions(tmp_path: Path) -> None:
    ended = same(Stage(tmp_path, COMPILED), PYTHONWARNINGS="ignore")

    assert ended.status == 0, ended.stderr
    assert "graph_break" not in ended.stdout


@pytest.mark.parametrize(
    "program", ["classifier.py", pytest.param("gpt.py", marks=pytest.mark.thorough("probes")), "hash_order.py"]
)
def test_training_has_the_same_bits_with_probes(tmp_path: Path, program: str) -> None:
    stage = Stage(tmp_path, (PROGRAMS / program).read_text())
    enabled = RunSpec(enabling=EnablingRequest(seed=1)).added_to({"PYTHONHASHSEED": "0"})
    plain = stage.plain(**with_bootstrap({**os.environ, **enabled}))
    probed = stage.probed(**enabled)

    assert probed.status == 0, probed.stderr
    assert len(probed.stdout) > 20
    assert probed.stdout == plain.stdout


def test_tests_rewritten_by_pytest_are_reported_as_unprobed(tmp_path: Path) -> None:
    from determinism.diagnose.sources import unprobed_modules

    stage = Stage(
        tmp_path, "", test_it="import helper\ndef test_it():\n    assert helper.words\n", helper="words = list({'a'})\n"
    )
    notes = stage.noted(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")

    assert [one.module for one in unprobed_modules(notes)] == ["test_it"]
    assert [one["file"] for one in documents(notes) if "digest" in one] == [str(stage.folder / "helper.py")]
