"""Child processes without their own name are distinguished by the order in which they were forked."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from determinism.process_name import is_other_program, is_sent_functions, own_name, takes_tasks, world_size


def printed(program: str) -> list[str]:
    start = """
        import multiprocessing, os, sys
        from determinism.process_name import own_name

        def fork(work):
            if os.fork() == 0:
                work()
                sys.stdout.flush()
                os._exit(0)

        def tell():
            os.write(1, f"{own_name('main')}\\n".encode())

        multiprocessing.set_start_method("fork")
    """
    text = textwrap.dedent(start) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()


def test_forked_children_are_numbered_in_the_order_of_their_forks() -> None:
    assert printed("""
        tell()
        read, write = os.pipe()
        fork(lambda: (os.read(read, 1), tell()))
        fork(lambda: (tell(), os.write(write, b"x")))
        os.wait(), os.wait()
    """) == ["None", "fork-2", "fork-1"]


def test_grandchildren_are_distinguished_even_if_their_parents_have_no_name() -> None:
    assert printed("""
        def parent():
            fork(tell)
            os.wait()
        for _ in range(2):
            fork(parent)
            os.wait()
    """) == ["fork-1-1", "fork-2-1"]


def test_multiprocessing_names_only_its_own_children() -> None:
    assert printed("""
        def parent():
            tell()
            fork(tell)
            os.wait()
        process = multiprocessing.Process(target=parent, name="by name")
        process.start()
        process.join()
    """) == ["by-name", "fork-1-1"]


def cluster(kind: str, index: object, **jobs: int) -> dict[str, str]:
    """The variable that tells a TensorFlow program which processes train together."""
    addresses = {job: [f"localhost:{port}" for port in range(count)] for job, count in jobs.items()}
    return {"TF_CONFIG": json.dumps({"cluster": addresses, "task": {"type": kind, "index": index}})}


LAUNCHED = {
    "alone": ({}, None, None),
    "torchrun": ({"RANK": "3", "WORLD_SIZE": "8"}, "rank-3", 8),
    "a rank without a size": ({"RANK": "3"}, "rank-3", None),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "rank-1", 2),
    "MPICH": ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "rank-1", 2),
    "Horovod": ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "rank-1", 2),
    "srun": ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}, "task-1", 2),
    "one task": ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None, None),
    "a batch script, before srun": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None, None),
    "torchrun below srun": ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, "rank-9", 16),
    "a cluster of TensorFlow": (cluster("worker", 1, worker=2), "rank-1", 2),
    "its chief": (cluster("chief", 0, chief=1, worker=2), "rank-0", 3),
    "a worker beside a chief": (cluster("worker", 1, chief=1, worker=2), "rank-2", 3),
    "a parameter server": (cluster("ps", 0, worker=1, ps=2), "ps-0", None),
    "a cluster of one": (cluster("worker", 0, worker=1), None, None),
    "a cluster of which nobody knows a number": (cluster("worker", "first", worker=2), None, None),
    "no JSON": ({"TF_CONFIG": "worker 1 of 2"}, None, None),
    "other JSON": ({"TF_CONFIG": "[1, 2]"}, None, None),
    "no number": ({"RANK": "first"}, None, None),
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_a_process_has_the_name_that_its_launcher_gives_it(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, name, size = LAUNCHED[launcher]
    for variable in ("RANK", "WORLD_SIZE", *(name for given, _, _ in LAUNCHED.values() for name in given)):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert (own_name("main"), world_size()) == (name, size)
    # Its children inherit the variables.
    assert own_name(f"main.{name}") is None


def ray(task: str | None, actor: str | None = None) -> Any:
    context = SimpleNamespace(get_task_id=lambda: task, get_actor_id=lambda: actor)
    return SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)


def must_not_begin() -> Any:
    raise AssertionError("Ray would start a cluster")


RAY = {
    "a task": (ray("7a"), "RayProcess-1", True),
    "an actor": (ray("7a", "0c"), "RayActorProcess-1", False),
    "the program that started Ray": (ray(None), None, False),
    "a program that only imported Ray": (
        SimpleNamespace(is_initialized=lambda: False, get_runtime_context=must_not_begin), None, False,
    ),
    "a module of that name that is not Ray": (SimpleNamespace(), None, False),
}  # fmt: skip


@pytest.mark.parametrize("where", RAY)
def test_a_process_in_which_ray_runs_something_is_named_by_what_it_runs(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, is_of_pool = RAY[where]
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr("determinism.process_name._launched", lambda: None)
    assert (own_name("main"), takes_tasks()) == (name, is_of_pool)


def of_pool() -> None: ...


class Worker:
    name = "ForkPoolWorker-2"


WITH_FUNCTION = SimpleNamespace(name="ForkPoolWorker-2", _target=of_pool)
OF_DASK = SimpleNamespace(name="Dask Worker process (from Nanny)", _target=of_pool)
OF_OTHERS = {
    "pathos": (WITH_FUNCTION, "multiprocess.process", "multiprocess.pool", "ForkPoolWorker-2", True),
    "Celery": (Worker(), "billiard.process", "billiard.pool", "ForkPoolWorker-2", True),
    "Dask": (OF_DASK, "multiprocessing.process", "distributed.process", "DaskProcess-1", True),
    "no pool": (WITH_FUNCTION, "multiprocess.process", "project.work", "ForkPoolWorker-2", False),
}


@pytest.mark.parametrize("library", OF_OTHERS)
def test_processes_of_other_libraries_have_names_and_those_of_their_pools_take_tasks(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, knows, runs, name, is_of_pool = OF_OTHERS[library]
    for made in (of_pool, Worker):
        monkeypatch.setattr(made, "__module__", runs)
    monkeypatch.setitem(sys.modules, knows, SimpleNamespace(current_process=lambda: process))
    monkeypatch.setattr("determinism.process_name._launched", lambda: None)
    assert (own_name("main"), takes_tasks()) == (name, is_of_pool)


def test_only_the_processes_of_a_pool_take_tasks() -> None:
    with ProcessPoolExecutor(1) as pool:
        assert (pool.submit(takes_tasks).result(), takes_tasks()) == (True, False)


def test_a_process_of_loky_takes_tasks() -> None:
    from joblib.externals import loky

    with loky.ProcessPoolExecutor(1) as pool:
        assert pool.submit(takes_tasks).result()


@pytest.mark.parametrize(
    ("key", "is_sent", "is_other"),
    [
        ("main", False, False),
        ("main.rank-1", False, False),
        ("main.ForkPoolWorker-2", False, False),
        ("main.Process-1", False, False),
        ("main.LokyProcess-2", True, False),
        ("main.RayProcess-1-2", True, False),
        ("main.DaskProcess-1", True, False),
        ("main.RayActorProcess-1", True, False),
        ("main.RayProcess-1.fork-1", True, False),
        ("main.1", False, True),
        ("main.1.rank-0", False, True),
        ("main-2", False, True),
        ("main.fork-1", False, False),
    ],
)
def test_the_key_of_a_process_says_whether_it_runs_the_programs_file(key: str, is_sent: bool, is_other: bool) -> None:
    assert (is_sent_functions(key), is_other_program(key)) == (is_sent, is_other)
