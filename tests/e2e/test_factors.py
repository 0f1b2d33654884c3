"""Each factor is held still or stirred in real processes: what is fixed is equal in all runs, what is stirred is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from determinism.factors.catalog import FACTORS, STIRRABLE, Action
from determinism.factors.request import FactorRequest
from determinism.factors.surroundings import before_start, factor_environment, obstacle
from determinism.launch.child_environment import with_bootstrap

PRINTS = {
    "hash-seed": "print(list({'ant', 'bee', 'cat', 'dog', 'elk', 'fox', 'gnu', 'hen'}), hash('ant'))",
    "python-seed": "import random; print(random.random())",
    "numpy-seed": "import numpy; print(numpy.random.rand())",
    "torch-seed": "import torch; print(torch.rand(1).item())",
    "entropy": (
        "import os, uuid, secrets, random, tempfile, numpy\n"
        "print(os.urandom(4), uuid.uuid4(), secrets.token_hex(4), random.Random().random(), random.SystemRandom().random(),"
        " numpy.random.default_rng().random(), numpy.random.RandomState().rand())"
    ),
    "listings": (
        "import os, glob, pathlib\n"
        "for folder, _, files in os.walk('.'): print(files)\n"
        "print(os.listdir('.'), [e.name for e in os.scandir('.')], glob.glob('*'), [p.name for p in pathlib.Path('.').iterdir()])"
    ),
    "memory": (
        "import torch, numpy\n"
        "for size in (4, 1000, 300000):\n"
        "    used = [torch.randn(size) for _ in range(3)]; del used\n"
        "    print(torch.empty(size).view(torch.int32).unique().tolist(), set(numpy.empty(size, numpy.int32).tolist()))"
    ),
    "addresses": "import ctypes, torch; print(id(object()), torch.ones(100).data_ptr(), torch.ones(10**6).data_ptr())",
    "clock": "import time; print(time.strftime('%Y-%m-%d'), int(time.time()) // 86400)",
}


def printed(program: str, actions: Mapping[str, str], number: int, folder: Path) -> str:
    request = FactorRequest(actions, number)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if actions:
        environment = factor_environment(environment, request)
    return subprocess.run(
        [sys.executable, "-c", program],
        env=with_bootstrap(environment),
        cwd=folder,
        preexec_fn=before_start(request),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("delta", "alpha", "echo", "bravo", "charlie"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("name", [name for name in PRINTS if FACTORS[name].fixed is not None])
def test_a_fixed_factor_is_the_same_in_every_run(name: str, folder: Path) -> None:
    if (why_not := obstacle(name, Action.FIXED)) is not None:
        pytest.skip(why_not)
    assert len({printed(PRINTS[name], {name: "fixed"}, number, folder) for number in (1, 2, 3)}) == 1


@pytest.mark.parametrize("name", [name for name in PRINTS if name not in ("listings", "clock", "memory")])
def test_left_alone_it_varies(name: str, folder: Path) -> None:
    assert len({printed(PRINTS[name], {}, number, folder) for number in (1, 2, 3)}) > 1


@pytest.mark.parametrize("name", [name for name in PRINTS if FACTORS[name].stirred is not None])
def test_a_stirred_factor_is_another_in_each_run(name: str, folder: Path) -> None:
    assert len({printed(PRINTS[name], {name: "stirred"}, number, folder) for number in (1, 2, 3)}) == 3


def test_memory_that_is_held_still_holds_zeros(folder: Path) -> None:
    assert set(printed(PRINTS["memory"], {"memory": "fixed"}, 1, folder).split("\n")) == {"[0] {0}", ""}


def test_what_is_stirred_depends_on_the_number_of_the_run_alone(folder: Path) -> None:
    for name in ("hash-seed", "listings", "memory"):
        once, again = (printed(PRINTS[name], {name: "stirred"}, 2, folder) for _ in range(2))
        assert once == again


def test_threads_that_are_held_still_run_one_after_the_other(folder: Path) -> None:
    program = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
seen = []
def work(name):
    time.sleep(0.02 if name % 2 else 0.0)
    seen.append(name)
threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with ThreadPoolExecutor(4) as pool:
    [future.result() for future in [pool.submit(work, name) for name in range(4, 8)]]
print(seen)
"""
    assert printed(program, {"thread-schedule": "fixed"}, 1, folder) == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert printed(program, {}, 1, folder) != "[0, 1, 2, 3, 4, 5, 6, 7]\n"


def test_a_thread_that_waits_for_its_starter_does_not_hang_it(folder: Path) -> None:
    program = """
import queue, threading
tasks = queue.Queue()
def work():
    while tasks.get() is not None: pass
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    tasks.put(1); tasks.put(None)
    thread.join()
print("done")
"""
    assert printed(program, {"thread-schedule": "fixed"}, 1, folder) == "done\n"


def test_data_is_loaded_without_workers_when_these_are_held_still(folder: Path) -> None:
    program = """
import os, torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return os.getpid()
loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, persistent_workers=True, prefetch_factor=2)
print({int(batch) == os.getpid() for batch in loader})
"""
    assert printed(program, {"workers": "fixed"}, 1, folder) == "{True}\n"
    assert printed(program, {}, 1, folder) == "{False}\n"


def test_one_thread_computes_when_threads_are_held_still(folder: Path) -> None:
    program = "import torch; torch.set_num_threads(2); print(torch.get_num_threads())"
    assert printed(program, {"threads": "fixed"}, 1, folder) == "1\n"


def test_deterministic_algorithms_are_used_when_asked_for(folder: Path) -> None:
    program = "import torch; torch.use_deterministic_algorithms(False); print(torch.are_deterministic_algorithms_enabled(), torch.empty(3).isnan().any().item())"
    assert printed(program, {"deterministic-algorithms": "fixed"}, 1, folder) == "True False\n"


def test_all_that_can_be_stirred_is_tried_here() -> None:
    assert set(STIRRABLE) - set(PRINTS) == {"thread-schedule", "workers"}


def test_a_request_travels_whole() -> None:
    request = FactorRequest({"memory": "fixed", "clock": "stirred"}, 3)
    again = FactorRequest.from_environment(request.to_environment())
    assert json.dumps(vars(again)) == json.dumps(vars(request))
