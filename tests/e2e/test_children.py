"""Programs with child processes, started by every method, and with pools."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.e2e.clean_programs import python
from tests.e2e.commands import compare, run
from tests.e2e.families import Fault, assert_named, assert_same, only, only_named

CLEAN = {
    "children": python("children/averaging", "fork,spawn,forkserver", processes=7),
    "pools": python("children/tasks", "pool,executor", processes=5),
    "shared memory": python("children/hogwild", processes=3),
    "shared results": python("children/shared_results", processes=4),
    "file": python("children/prepared_file", processes=2),
}


@pytest.mark.parametrize("name", only_named(["shared results"], CLEAN))
def test_a_clean_program_is_the_same(name: str, tmp_path: Path) -> None:
    assert_same(CLEAN[name], tmp_path)


def averaging(start: str, fault: str, kind: str, step: int) -> Fault:
    """A fault in the second child."""
    program = python("children/averaging", start, fault, processes=3)
    return Fault(f"{fault}, {start}", program, kind, step, f"children/averaging SITE {fault}", f"main.{start}-1")


def tasks(pool: str, fault: str, kind: str, process: str) -> Fault:
    """A fault in a task, or in the order of the tasks."""
    return Fault(
        f"{fault}, {pool}", python("children/tasks", pool, fault, processes=3), kind, 1 if fault == "bit" else 0,
        f"children/tasks SITE {fault}", process,
    )  # fmt: skip


def results(*words: str) -> Fault:
    """A fault in the second child that reaches the parent through shared memory."""
    program = python("children/shared_results", *words, processes=4)
    return Fault(" and ".join(words), program, "rng", 0, "children/shared_results SITE seed", r"main\.finder-1")


FAULTS = [
    averaging("fork", "bit", "op", 1),
    # The process that reads too early: half-0 if it read a value that half-1 should have written later, else half-1.
    Fault("race", python("children/hogwild", "race"), "mutation", 2, "children/hogwild SITE race", r"main\.half-\d"),
    averaging("forkserver", "seed", "rng", 0),
    Fault(
        "file", python("children/prepared_file", "seed"), "rng", 0, "children/prepared_file SITE seed", "main.preparing"
    ),
    results("seed"),
    results("seed", "told"),
    tasks("pool", "bit", "op", r"main\.ForkPoolWorker-\d"),
    tasks("pool", "order", "order", "main"),
    tasks("executor", "order", "order", "main"),
]


@pytest.mark.parametrize("fault", only(["race", "seed, forkserver", "order, executor"], FAULTS))
def test_a_fault_is_located(fault: Fault, tmp_path: Path) -> None:
    report = assert_named(fault, tmp_path)
    received = [(other["process"], other["received_from"]) for other in report["divergences"]]
    if fault.process != "main":
        assert ("main", report["first_divergence"]["process"]) in received


THREADS_OF_POOLS = """
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import torch

def work(number):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: torch.full((3,), number).exp().sum().item()).result()

if __name__ == "__main__":
    tasks = [float(word) for word in sys.argv[1:]]
    # Each task has a process of its own, so that the order of the arguments decides which process gets which task.
    pools = [ProcessPoolExecutor(1) for _ in tasks]
    print(sum(pool.submit(work, task).result() for pool, task in zip(pools, tasks)))
"""


@pytest.mark.parametrize(("other", "verdict"), [(("2", "1"), "same"), (("2", "3"), "different")])
def test_it_does_not_matter_which_process_of_a_pool_has_the_thread_that_does_a_task(
    other: tuple[str, str], verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "pools.py").write_text(THREADS_OF_POOLS)
    for name, tasks in (("one", ("1", "2")), ("two", other)):
        recorded = run(tmp_path, "record", "-o", name, "--", sys.executable, "pools.py", *tasks)
        assert recorded.status == 0, recorded.text
    report = compare(tmp_path, "one", "two").report
    assert report is not None and report["verdict"] == verdict
    assert report["recorded"]["processes"] >= 2


WAITING = """
import multiprocessing, os, time
import torch

def wait(started):
    started.send(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    receiving, sending = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=wait, args=(sending,), daemon=True).start()
    with open("daemon", "w") as file:
        file.write(str(receiving.recv()))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.square().sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("is_daemon", "work"), [(True, "time.sleep(600)"), (False, "time.sleep(600)"), (False, "while True: pass")]
)
def test_children_that_never_end_are_ended_with_a_program_that_is_stopped_early(
    is_daemon: bool, work: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(
        WAITING.replace("daemon=True", f"daemon={is_daemon}").replace("time.sleep(600)", work)
    )
    ended = run(
        tmp_path, "check", "--runs", "2", "--steps", "1", "--json", "report.json", "--", sys.executable, "program.py"
    )
    assert ended.status == 0, ended.text

    daemon = Path("/proc", (tmp_path / "daemon").read_text())
    deadline = time.monotonic() + 10
    while daemon.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not daemon.exists()
