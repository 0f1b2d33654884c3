"""`%%determinism` runs a cell twice from the same state, reports the result, and keeps the cell's effects once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CELLS = {
    "load": "%load_ext determinism",
    "imports": "%%determinism\nimport torch\ntorch.ones(2).sum()",
    "state": "import os, random\ncount, weights, missing = 0, torch.zeros(2), object()\ntorch.manual_seed(0)",
    "effects": (
        "%%determinism -o found\nmade = 'made' in globals()\nassert not made\ncount += 1\nweights += 1\nos.environ['COUNT'] = str(count)\n"
        "del missing\nprint('count', count)\ntorch.rand(2)\nweights.sum().item()"
    ),
    "afterwards": "print(count, weights, os.environ['COUNT'], 'missing' in globals(), found.verdict, _, torch.rand(1).item())",
    "expected draw": "_ = torch.manual_seed(0), torch.rand(2)\nprint(torch.rand(1).item())",
    "different": "%%determinism\nother = 1\nvalue = torch.tensor(int.from_bytes(os.urandom(6)) / 7)\nvalue.item()",
    "three runs": "%%determinism --runs 3 --fail\ncount += 1\ntorch.ones(2).sum().item()",
    "fail": "%%determinism --fail\ntorch.tensor(int.from_bytes(os.urandom(6)) / 7).item()",
    "iterators": "batches = iter([1, 2, 3])",
    "position": "%%determinism\nnext(batches)",
    "not used up": "print(next(batches))",
    "one run": "%%determinism --runs 1\ncount = 99",
    "misspelt": "%%determinism --run 3\ncount = 99",
    "error": "%%determinism\nprint('printed before')\ntorch.ones(2).sum().item()\nraise KeyError('mine')",
    "second fails": (
        "%%determinism\ntorch.ones(2).sum().item()\nassert not os.path.exists('mark')\nopen('mark', 'w').close()"
    ),
    "two magics": "%%determinism\n%%time\ncount = 99",
    "no code": "%%determinism\nx = (",
    "nothing": "%%determinism\ncount += 0",
    "await": "%%determinism\nawait count",
    "steps": (
        "%%determinism --steps 2 --fail\nimport determinism\nfor step in range(3):\n"
        "    torch.tensor(1.0 if step < 2 else int.from_bytes(os.urandom(6)) / 7).item()\n    determinism.step()"
    ),
    "level": (
        "%%determinism --level step --fail\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(3):\n    model(torch.ones(1, 2)).sum().backward()\n    optimizer.step()"
    ),
    "unchanged": "print(count)",
    "unload": "%unload_ext determinism",
    "unloaded": "%%determinism\ncount",
}
DRIVER = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
results = {}
for name, cell in json.load(sys.stdin).items():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        success = shell.run_cell(cell, store_history=True).success
    results[name] = [success, printed.getvalue()]
print(json.dumps(results))
"""


@dataclass
class Result:
    success: bool
    printed: str


def run_cells(folder: Path, cells: dict[str, str], *command: str) -> dict[str, Result]:
    (folder / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "IPYTHONDIR": str(folder / "ipython")}
    finished = subprocess.run(
        [*command, sys.executable, "driver.py"], cwd=folder, env=environment, input=json.dumps(cells),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return {name: Result(*values) for name, values in json.loads(finished.stdout.splitlines()[-1]).items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return run_cells(tmp_path_factory.mktemp("cells"), CELLS)


def test_a_cell_that_imports_the_framework_is_recorded(results: dict[str, Result]) -> None:
    assert results["imports"].success
    assert results["imports"].printed.splitlines() == [
        "Out[2]: tensor(2.)", "Same: 2 runs, 4 records, every tensor bit-identical",
    ]  # fmt: skip


def test_effects_and_output_are_kept_once(results: dict[str, Result]) -> None:
    assert results["effects"].success, results["effects"].printed
    assert results["effects"].printed.count("count 1\n") == 1
    expected = results["expected draw"].printed.strip()
    assert results["afterwards"].printed.strip() == f"1 tensor([1., 1.]) 1 False same 2.0 {expected}"


def test_a_difference_is_reported_with_cell_and_line(results: dict[str, Result]) -> None:
    number = list(CELLS).index("different") + 1
    assert results["different"].success
    assert f"Different: a value from outside the framework differs at In[{number}]:3\n" in results["different"].printed
    assert "value = torch.tensor(int.from_bytes(os.urandom(6)) / 7)" in results["different"].printed


def test_a_difference_fails_the_cell_with_option_fail(results: dict[str, Result]) -> None:
    assert not results["fail"].success
    assert "UsageError: %%determinism --fail: Different: " in results["fail"].printed
    assert results["three runs"].success
    assert "Same: 3 runs, " in results["three runs"].printed


def test_state_that_cannot_be_restored_is_rejected_before_anything_runs(results: dict[str, Result]) -> None:
    assert not results["position"].success
    assert results["position"].printed.startswith(
        "UsageError: batches is of type list_iterator, whose position cannot be copied"
    )
    assert results["not used up"].printed == "1\n"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("one run", "--runs 1: comparing needs two runs or more"),
        ("misspelt", "unrecognized arguments: --run 3"),
        ("two magics", "cannot be followed by another cell magic, %%time"),
        ("await", "This cell awaits something at its top level"),
        ("no code", "SyntaxError"),
    ],
)
def test_a_cell_that_cannot_be_run_twice_is_not_run(results: dict[str, Result], cell: str, says: str) -> None:
    assert not results[cell].success
    assert says in results[cell].printed
    assert results["unchanged"].printed == "2\n"


def test_an_error_is_shown_once_with_its_line_and_the_output(results: dict[str, Result]) -> None:
    printed = results["error"].printed
    assert not results["error"].success
    assert printed.startswith("printed before\n") and printed.count("printed before\n") == 1
    assert "----> 4 raise KeyError('mine')" in printed
    assert "notebook.py" not in printed


def test_a_later_run_that_fails_is_a_difference(results: dict[str, Result]) -> None:
    assert not results["second fails"].success
    assert "Different: run 2 of 2 failed with AssertionError, and run 1 did not" in results["second fails"].printed


def test_a_cell_without_tensors_is_inconclusive(results: dict[str, Result]) -> None:
    assert results["nothing"].printed.startswith("Inconclusive: Run 1 imported torch, but no op of it was recorded")


def test_steps_and_level_are_passed_on(results: dict[str, Result]) -> None:
    assert "Same: 2 runs, 2 steps, " in results["steps"].printed
    assert "Same: 2 runs, 3 steps, " in results["level"].printed


def test_the_extension_can_be_unloaded(results: dict[str, Result]) -> None:
    assert results["unload"].success
    assert "`%%determinism` not found" in results["unloaded"].printed


FIGURES = """
import sys, types
open_figures = []
pyplot = types.ModuleType("matplotlib.pyplot")
pyplot.get_fignums = lambda: list(open_figures)
pyplot.close = open_figures.remove
sys.modules["matplotlib.pyplot"] = pyplot
open_figures.append(1)
"""


def test_figures_of_only_one_run_are_kept(tmp_path: Path) -> None:
    cells = {
        "load": "%load_ext determinism",
        "figures": FIGURES,
        "drawn": "%%determinism\nimport torch\nopen_figures.append(2 + len(open_figures))\ntorch.ones(1).item()",
        "left": "print(open_figures)",
    }
    found = run_cells(tmp_path, cells)
    assert found["drawn"].success, found["drawn"].printed
    assert found["left"].printed == "[1, 3]\n"


def test_a_cell_runs_once_if_the_whole_notebook_is_recorded(tmp_path: Path) -> None:
    cells = {
        "load": "%load_ext determinism",
        "cell": "%%determinism -o found --fail\nimport torch\nprint('ran', torch.ones(2).sum().item())",
        "after": "print(found)",
    }
    found = run_cells(tmp_path, cells, sys.executable, "-m", "determinism", "record", "-o", "trace", "--")
    assert found["cell"].success, found["cell"].printed
    assert found["cell"].printed.count("ran 2.0\n") == 1
    assert "In[2] ran once and was not compared" in found["cell"].printed
    assert found["after"].printed.startswith("inconclusive: In[2] ran once and was not compared")
