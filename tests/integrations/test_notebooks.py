"""Notebooks executed by Jupyter's own tools with a real kernel: `%%determinism` shows its summary as HTML and as text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CELLS = [
    "%load_ext determinism",
    "import os, torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\ncount = 0",
    (
        "%%determinism\nfor _ in range(2):\n    optimizer.zero_grad()\n    loss = model(torch.rand(3, 4)).sum()\n    loss.backward()\n"
        "    optimizer.step()\ncount += 1\nprint('loss', loss.item())\ncount"
    ),
    "print(count)",
    "%%determinism\nnoise = torch.full((4,), int.from_bytes(os.urandom(6)) / 7)\nmodel(noise).sum().item()",
]
BROKEN = [
    "%load_ext determinism",
    "import torch",
    "%%determinism\ntorch.ones(2).sum().item()\n1 / 0",
    "print('not reached')",
]


def cell(source: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"c{abs(hash(source))}",
        "metadata": {},
        "outputs": [],
        "source": source,
    }


def executed(folder: Path, cells: list[str]) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Execute a notebook; returns the finished process and the executed cells."""
    notebook = {"cells": [cell(source) for source in cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "notebook.ipynb").write_text(json.dumps(notebook))
    own = {
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    command = [
        sys.executable,
        "-m",
        "nbconvert",
        "--to",
        "notebook",
        "--execute",
        "--output",
        "result.ipynb",
        "notebook.ipynb",
    ]
    finished = subprocess.run(
        command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=180, check=False
    )
    result = folder / "result.ipynb"
    return finished, json.loads(result.read_text())["cells"] if result.exists() else []


def text_of(part: object) -> str:
    return "".join(part) if isinstance(part, list) else str(part)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    finished, found = executed(tmp_path_factory.mktemp("notebook"), CELLS)
    assert finished.returncode == 0, finished.stderr
    return found


def shown(found: dict[str, Any], kind: str) -> list[str]:
    return [text_of(output["data"][kind]) for output in found["outputs"] if kind in output.get("data", {})]


def printed(found: dict[str, Any]) -> str:
    return "".join(text_of(output["text"]) for output in found["outputs"] if output["output_type"] == "stream")


def test_a_training_cell_is_the_same_and_counts_once(cells: list[dict[str, Any]]) -> None:
    assert printed(cells[2]).count("loss ") == 1
    value, summary = shown(cells[2], "text/plain")
    assert value == "1"
    assert summary.startswith("Same: 2 runs, 2 steps, ")
    assert printed(cells[3]) == "1\n"


def test_a_difference_is_shown_as_html_with_cell_and_line(cells: list[dict[str, Any]]) -> None:
    (html,) = shown(cells[4], "text/html")
    assert "In[5]:2" in html
    assert "int.from_bytes(os.urandom(6))" in html
    text = shown(cells[4], "text/plain")[-1]
    assert text.startswith("Different: ")
    assert "In[5]:2" in text


def test_an_error_in_a_cell_stops_the_notebook(tmp_path: Path) -> None:
    finished, found = executed(tmp_path, BROKEN)
    assert finished.returncode != 0 and not found
    assert "ZeroDivisionError" in finished.stderr
