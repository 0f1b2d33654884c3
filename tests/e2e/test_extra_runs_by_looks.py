"""Programs whose dependence on timing shows only in their code or their processes get extra runs after two equal ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.commands import check

LOOP = """
import time
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters())
start, step = time.monotonic(), 0
while {condition}:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    step += 1
    if step == 2:
        break
"""


@pytest.mark.parametrize(("condition", "extra"), [("time.monotonic() - start < 600", 3), ("step < 2", 0)])
def test_a_loop_whose_end_depends_on_the_clock_gets_extra_runs(condition: str, extra: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.format(condition=condition))
    finished = check(tmp_path, "--", sys.executable, "train.py")
    racy = ["what the clock decides"] if extra else []
    assert finished.report is not None
    assert finished.report["extra_runs"] == {"count": extra, "racy": racy}


OF_A_SET = """
import torch

names = ["a", "a"]
labels = list(set(names))
print(torch.tensor([labels.index(name) for name in names]).sum().item())
"""


@pytest.mark.parametrize(("salt", "extra"), [("random", 3), ("0", 0)])
def test_a_program_that_uses_the_order_of_a_set_gets_extra_runs_unless_hashes_are_fixed(
    salt: str, extra: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", salt)
    (tmp_path / "train.py").write_text(OF_A_SET)
    finished = check(tmp_path, "--", sys.executable, "train.py")
    racy = ["the order of sets"] if extra else []
    assert finished.report is not None
    assert finished.report["extra_runs"] == {"count": extra, "racy": racy}


CHILDREN = """
import multiprocessing
import torch

def work(queue, number):
    queue.put(torch.full((3,), float(number)).mean().item())

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    children = [fork.Process(target=work, args=(queue, number)) for number in range({count})]
    for child in children:
        child.start()
    results = sorted(queue.get() for _ in children)
    for child in children:
        child.join()
    {rest}
"""


@pytest.mark.parametrize(
    ("count", "rest", "extra"),
    [(2, "print(torch.tensor(results).sum().item())", 3), (1, "print(torch.tensor(results).sum().item())", 0), (2, "print()", 0)],
)  # fmt: skip
def test_results_of_several_children_used_in_tensors_get_extra_runs(
    count: int, rest: str, extra: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(CHILDREN.format(count=count, rest=rest))
    finished = check(tmp_path, "--", sys.executable, "train.py")
    racy = ["child processes that work side by side"] if extra else []
    assert finished.report is not None
    assert finished.report["extra_runs"] == {"count": extra, "racy": racy}
