"""Each factor is fixed or perturbed in real processes: fixed, it is equal in all runs; perturbed, it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from determinism.factors.catalog import (
    FACTORS,
    PERTURBABLE,
    Action,
    before_start,
    obstacle,
)
from determinism.launch.program import child_environment
from determinism.run_spec import FactorRequest, RunSpec

PRINTS = {
    "hash-seed": "print(list({'ant', 'bee', 'cat', 'dog', 'elk', 'fox', 'gnu', 'hen'}), hash('ant'))",
    "python-seed": "import random; print(random.random())",
    "forked-seed": (
        "import os, random\n"
        "random.seed(1)\n"
        "if not os.fork():\n"
        "    print(random.random(), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()"
    ),
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
    # Small blocks are on the heap, where Python's own data about the time and files shifts them slightly.
    "addresses": "import numpy; print(numpy.ones(10**6).ctypes.data)",
    "clock": "import time; print(time.strftime('%Y-%m-%d'), int(time.time()) // 86400)",
}


def printed(program: str, actions: Mapping[str, str], number: int, folder: Path) -> str:
    request = FactorRequest(actions, number)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if actions:
        environment = child_environment(environment, RunSpec(factors=request))
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
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
def test_a_factor_left_alone_varies(name: str, folder: Path) -> None:
    assert len({printed(PRINTS[name], {}, number, folder) for number in (1, 2, 3)}) > 1


@pytest.mark.parametrize("name", [name for name in PRINTS if FACTORS[name].perturbed is not None])
def test_a_perturbed_factor_differs_in_each_run(name: str, folder: Path) -> None:
    assert len({printed(PRINTS[name], {name: "perturbed"}, number, folder) for number in (1, 2, 3)}) == 3


DAYS = [
    *("time() // 86400", "time_ns() // 86_400_000_000_000", "localtime().tm_yday", "gmtime().tm_yday"),
    *("strftime('%j')", "ctime()[:10]", "asctime()[:10]"),
]


@pytest.mark.parametrize("day", DAYS)
def test_each_function_of_time_returns_a_different_day_when_the_clock_is_perturbed(day: str, folder: Path) -> None:
    program = f"import time; print(time.{day})"
    assert len({printed(program, {"clock": "perturbed"}, number, folder) for number in (1, 2, 3)}) == 3


def test_fixed_memory_holds_zeros(folder: Path) -> None:
    assert set(printed(PRINTS["memory"], {"memory": "fixed"}, 1, folder).split("\n")) == {"[0] {0}", ""}


def test_a_perturbation_depends_only_on_the_number_of_the_run(folder: Path) -> None:
    for name in ("hash-seed", "listings", "memory"):
        once, again = (printed(PRINTS[name], {name: "perturbed"}, 2, folder) for _ in range(2))
        assert once == again


def test_sleeping_threads_that_take_turns_continue_in_order_of_their_wake_up_times(folder: Path) -> None:
    program = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
seen, lock = [], threading.Lock()
def work(name):
    time.sleep((8 - name) * 0.005)
    seen.append(name)
    with lock:
        time.sleep(0.001)
threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with ThreadPoolExecutor(4) as pool:
    [future.result() for future in [pool.submit(work, name) for name in range(4, 8)]]
print(seen)
"""
    assert printed(program, {"thread-schedule": "fixed"}, 1, folder) == "[3, 2, 1, 0, 4, 5, 6, 7]\n"


QUEUES = """
import queue, random, threading, time
def make(name):
    for number in range(20):
        sum(range(random.randrange(20000)))
        made.put((name, number), timeout=30)
        if number % 5 == 0:
            time.sleep(random.random() / 500)
def add():
    while True:
        item = made.get()
        if item is None:
            return
        with changed:
            done.append(item)
            changed.notify_all()
made, done, changed = queue.Queue(3), [], threading.Condition()
threads = [threading.Thread(target=make, args=(name,)) for name in "abc"] + [threading.Thread(target=add) for _ in range(2)]
for thread in threads: thread.start()
with changed:
    changed.wait_for(lambda: len(done) >= 30, timeout=30)
for thread in threads[:3]: thread.join()
made.put(None); made.put(None)
for thread in threads[3:]: thread.join(timeout=30)
print(done, [thread.is_alive() for thread in threads])
"""


def test_threads_that_take_turns_fill_and_empty_queues_in_one_order(folder: Path) -> None:
    program = QUEUES.replace("random.random() / 500", "0.001")
    found = {printed(program, {"thread-schedule": "fixed"}, number, folder) for number in range(4)}
    assert len(found) == 1
    assert len({printed(program, {}, number, folder) for number in range(4)}) > 1


@pytest.mark.parametrize(
    "program",
    [
        "import threading, os\nt = threading.Thread(target=os._exit, args=(7,))\nt.start()\nt.join()",
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join(); print(t.is_alive()); exit(7)",
        "import threading, os\nthreading.Thread(target=lambda: os._exit(7)).start()",
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(99,), daemon=True)\nt.start(); exit(7)",
        "import threading\ne = threading.Event()\nprint(e.wait(0.01)); l = threading.RLock()\nwith l, l: exit(7)",
        "import threading\nb = threading.Barrier(3)\nts = [threading.Thread(target=b.wait) for _ in range(2)]\n"
        "[t.start() for t in ts]; b.wait(); [t.join() for t in ts]; exit(7)",
        "import threading, os\nt = threading.Thread(target=lambda: None); t.start()\n"
        "p = os.fork()\nif p == 0:\n    t = threading.Thread(target=lambda: None); t.start(); t.join(); os._exit(7)\n"
        "t.join(); exit(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))",
        "import threading, asyncio\nasync def f(): return await asyncio.to_thread(lambda: 7)\nexit(asyncio.run(f()))",
        "import threading, queue\nq = queue.SimpleQueue(); t = threading.Thread(target=lambda: q.put(7)); t.start(); exit(q.get())",
        "import threading, multiprocessing as m\nif __name__ == '__main__':\n    q = m.get_context('fork').Queue(); q.put(7)\n"
        "    t = threading.Thread(target=lambda: None); t.start(); exit(q.get())",
    ],
)  # fmt: skip
def test_programs_whose_threads_take_turns_end_as_usual(program: str, folder: Path) -> None:
    spec = RunSpec(factors=FactorRequest({"thread-schedule": "fixed"}))
    environment = child_environment(os.environ, spec)
    ended = subprocess.run([sys.executable, "-c", program], env=environment, cwd=folder, timeout=60, check=False)
    assert ended.returncode == 7


def test_a_thread_blocked_in_a_system_call_does_not_block_the_others(folder: Path) -> None:
    program = """
import os, threading
reading, writing = os.pipe()
thread = threading.Thread(target=lambda: os.write(writing, b"on"))
thread.start()
print(os.read(reading, 9).decode())
thread.join()
"""
    assert printed(program, {"thread-schedule": "fixed"}, 1, folder) == "on\n"


def test_a_thread_that_waits_for_the_thread_that_started_it_does_not_block_it(folder: Path) -> None:
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


PROCESSES = """
import multiprocessing, sys, time
def work(number, met):
    if met is not None: met.wait()
    time.sleep(0.3 * (2 - number))
    print(number, flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    met = context.Barrier(2) if sys.argv[1:] == ["meet"] else None
    workers = [context.Process(target=work, args=(number, met)) for number in range(2)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""


def test_processes_that_take_turns_run_one_after_the_other(folder: Path) -> None:
    assert printed(PROCESSES, {"process-schedule": "fixed"}, 1, folder) == "0\n1\n"
    # On a busy machine the second process may start much later than the first.
    assert any(printed(PROCESSES, {}, 1, folder) == "1\n0\n" for _ in range(5))


def test_daemonic_processes_started_by_the_program_itself_also_take_turns(folder: Path) -> None:
    program = PROCESSES.replace("args=(number, met))", "args=(number, met), daemon=True)")
    assert printed(program, {"process-schedule": "fixed"}, 1, folder) == "0\n1\n"


def test_processes_that_wait_for_each_other_continue(folder: Path) -> None:
    program = PROCESSES.replace("sys.argv[1:]", '["meet"]')
    assert sorted(printed(program, {"process-schedule": "fixed"}, 1, folder).split()) == ["0", "1"]


def test_data_is_loaded_without_workers_when_workers_are_fixed(folder: Path) -> None:
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


def test_one_thread_computes_when_threads_are_fixed(folder: Path) -> None:
    program = "import torch; torch.set_num_threads(2); print(torch.get_num_threads())"
    assert printed(program, {"threads": "fixed"}, 1, folder) == "1\n"


def test_ops_are_replaced_when_patches_are_fixed(folder: Path) -> None:
    program = """
import time, torch
torch.set_num_threads(2)
places, values = torch.arange(1 << 19) % 8, torch.rand(1 << 19, generator=torch.Generator().manual_seed(0))
until, found = time.monotonic() + SECONDS, set()
for _ in range(40):
    found.add(tuple(torch.zeros(8).index_put((places,), values, accumulate=True).tolist()))
while len(found) == 1 and time.monotonic() < until:
    found.add(tuple(torch.zeros(8).index_put((places,), values, accumulate=True).tolist()))
print(len(found))
"""
    assert printed(program.replace("SECONDS", "0"), {"patches": "fixed"}, 1, folder) == "1\n"
    # On a busy machine two threads may not run at the same time for a while.
    assert int(printed(program.replace("SECONDS", "60"), {}, 1, folder)) > 1


def test_deterministic_algorithms_are_used_when_fixed(folder: Path) -> None:
    program = "import torch; torch.use_deterministic_algorithms(False); print(torch.are_deterministic_algorithms_enabled(), torch.empty(3).isnan().any().item())"
    assert printed(program, {"deterministic-algorithms": "fixed"}, 1, folder) == "True False\n"


def test_all_but_three_perturbable_factors_are_tried_here() -> None:
    assert set(PERTURBABLE) - set(PRINTS) == {"thread-schedule", "workers", "compile-caches"}
