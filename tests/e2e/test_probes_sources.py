"""Each source is noted at its line, differs between two runs, and gives the same result in every run once it is fixed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from determinism.diagnose.code_changes import code_fix
from determinism.diagnose.sources import seeding_calls
from determinism.probes.child import FUNCTIONS
from determinism.run_spec import FixedSource, ProbeRequest
from tests.e2e.families import only_named
from tests.e2e.probing import Stage, documents


class Program(NamedTuple):
    """A program with one source; the line that uses it ends with a marker comment."""

    source: str
    text: str

    @property
    def line(self) -> int:
        """The line with the marker."""
        return next(number for number, line in enumerate(self.text.splitlines(), start=1) if line.endswith("# here"))


TABLE = (
    "import sqlite3\ncon = sqlite3.connect(':memory:')\ncon.execute('CREATE TABLE t(n INT, s TEXT)')\n"
    "con.executemany('INSERT INTO t VALUES (?, ?)', [(n, 'ab') for n in range(99)])\n"
)
DRAWN = "SELECT n, s FROM t ORDER BY RANDOM() LIMIT 9"

PROGRAMS = {
    "hash": Program("hash", "print(hash('word') % 1000, sorted(['a', 'b'], key=len))  # here"),
    "hash as key": Program("hash", "print(sorted(map(str, range(20)), key=hash))  # here"),
    "hash of a tuple": Program("hash", "print(hash(('word', 1)) % 1000)  # here"),
    "id": Program("id", "things = [object() for _ in range(3)]\nprint([id(t) for t in things])  # here"),
    "id as key": Program("id", "class T: pass\nts = [T() for _ in range(40)]\nts.sort(key=id)  # here\nprint(id)"),
    "id of objects where others were": Program(
        "id",
        "class T: pass\ndef name(t): return id(t)  # here\nts = [T() for _ in range(999)]\nlist(map(name, ts))\n"
        "del ts[hash('word') % 900 :]\nprint([*map(name, [T() for _ in range(5)])])",
    ),
    "weak set": Program(
        "set-order",
        "import weakref\nclass T: pass\nothers = [T() for _ in range(hash('word') % 1000)]\nts = [T() for _ in range(200)]\n"
        "kept = weakref.WeakSet()\nfor t in ts: kept.add(t)\nprint([ts.index(t) for t in kept])  # here",
    ),
    "weak set of a list": Program(
        "set-order",
        "import weakref\nclass T: pass\nothers = [T() for _ in range(hash('word') % 1000)]\nts = [T() for _ in range(200)]\n"
        "print([ts.index(t) for t in weakref.WeakSet(ts)])  # here",
    ),
    "set that is filled by update": Program(
        "set-order",
        "class T: pass\nothers = [T() for _ in range(hash('word') % 1000)]\nts = [T() for _ in range(200)]\nkept = set()\n"
        "kept.update(ts[:100])\nkept.update(t for t in ts[100:])\nprint([ts.index(t) for t in kept])  # here",
    ),
    "urandom": Program("entropy", "import os\nprint(os.urandom(8))  # here"),
    "uuid": Program("entropy", "from uuid import uuid4\nprint(uuid4())  # here"),
    "secrets": Program("entropy", "import secrets\nprint(secrets.token_hex(8), secrets.randbelow(99**9))  # here"),
    "token": Program("entropy", "import secrets\nprint(len(secrets.token_urlsafe(9)), secrets.randbits(64))  # here"),
    "chosen": Program("entropy", "import secrets\nprint([secrets.choice('abcdefgh') for _ in range(40)])  # here"),
    "system random": Program("entropy", "import random\nprint(random.SystemRandom().random())  # here"),
    "temporary name": Program(
        "entropy",
        "import os, tempfile\nwith tempfile.TemporaryDirectory() as name:  # here\n    print(os.path.basename(name))",
    ),
    "pid": Program("process-id", "import os\nprint(os.getpid())  # here"),
    "used so far": Program("machine-state", "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF))  # here"),
    "times of the process": Program(
        "machine-state", "import os\nsum(range(10**6))\nprint(os.times().user, os.times())  # here"
    ),
    "time of a file": Program(
        "file-time",
        "import os\nwith open('new', 'w') as new: new.write('text')\nprint(os.path.getmtime('new'))  # here",
    ),
    "status of a file": Program(
        "file-time",
        "from pathlib import Path\nnew = Path('new')\nnew.write_text('text')\n"
        "status = new.stat()  # here\nprint(status.st_size, status.st_mtime, status.st_ctime_ns)",
    ),
    "program that runs": Program(
        "program-output",
        "import subprocess\ndone = subprocess.run(['shuf', '-i', '1-99'], capture_output=True)  # here\nprint(done.stdout)",
    ),
    "output of a program": Program(
        "program-output",
        "import subprocess\nprint(subprocess.check_output(('shuf', '-i', '1-99'), text=True).split())  # here",
    ),
    "command of a shell": Program(
        "program-output", "from subprocess import getoutput\nprint(getoutput('shuf -i 1-99 | head -n 99'))  # here"
    ),
    "errors of a program": Program(
        "program-output",
        "import subprocess\nprint(subprocess.run('shuf -i 1-99 >&2', shell=True, stderr=-1).stderr)  # here",
    ),
    "pipe that is read": Program("program-output", "import os\nprint(os.popen('shuf -i 1-99').read())  # here"),
    "pipe that is iterated": Program(
        "program-output",
        "import os\nfor line in open(__file__): pass\nwith os.popen('shuf -i 1-99') as pipe:  # here\n"
        "    for line in pipe:\n        print(line)",
    ),
    "program beside": Program(
        "program-output",
        "import subprocess\nwith subprocess.Popen(['shuf', '-i', '1-99'], stdout=-1) as program:  # here\n"
        "    print([int(line) for line in program.stdout])",
    ),
    "program that is given something": Program(
        "program-output",
        "import subprocess as s\nprogram = s.Popen(['shuf'], stdin=s.PIPE, stdout=s.PIPE, text=True)\n"
        "output, _ = program.communicate(''.join(f'{n}\\n' for n in range(99)))  # here\nprint(output)",
    ),
    "random rows": Program("query-result", f"{TABLE}print(con.execute({DRAWN!r}).fetchall())  # here"),
    "cursor": Program(
        "query-result",
        f"{TABLE}con.row_factory = sqlite3.Row\ncur = con.cursor()\ncur.execute({DRAWN!r})  # here\n"
        "print([tuple(row) for row in (cur.fetchone(), *cur.fetchmany(3))])",
    ),
    "rows that are iterated": Program(
        "query-result",
        f"{TABLE}for number, text in con.execute({DRAWN!r}):  # here\n    print(number, text)",
    ),
    "list of rows": Program("query-result", f"{TABLE}print(list(con.execute({DRAWN!r})))  # here"),
    "draw": Program("python-random", "import random\nprint(random.random(), random.choice('abc'))  # here"),
    "shuffle": Program("python-random", "from random import shuffle\nx = [*range(9)]\nshuffle(x)  # here\nprint(x)"),
    "numpy draw": Program("numpy-random", "import numpy as np\nprint(np.random.rand(2))  # here"),
    "numpy permutation": Program("numpy-random", "import numpy as np\nprint(np.random.permutation(9))  # here"),
    "unseeded Random": Program("unseeded-generator", "import random\nprint(random.Random().random())  # here"),
    "seed without a seed": Program(
        "unseeded-generator", "import random\nrandom.seed()  # here\nprint(random.Random(5).random())"
    ),
    "default_rng": Program(
        "unseeded-generator", "import numpy as np\nrng = np.random.default_rng()  # here\nprint(rng.random())"
    ),
    "RandomState": Program("unseeded-generator", "import numpy as np\nprint(np.random.RandomState().rand())  # here"),
    "bit generator": Program(
        "unseeded-generator",
        "import numpy as np\nfrom numpy.random import PCG64\nbits = PCG64()  # here\nprint(np.random.Generator(bits).random())",
    ),
    "seed of NumPy": Program("unseeded-generator", "import numpy as np\nnp.random.seed()  # here\nprint(1)"),
    "torch.seed": Program("unseeded-generator", "import torch\ntorch.seed()  # here\nprint(torch.rand(2))"),
    "Generator.seed": Program(
        "unseeded-generator", "import torch\ng = torch.Generator()\ng.seed()  # here\nprint(torch.rand(2, generator=g))"
    ),
    "seed from the clock": Program(
        "seed-value", "import random, time\nseed = time.time_ns()\nrandom.seed(seed)  # here\nprint(random.Random(1))"
    ),
    "seed of torch": Program(
        "seed-value", "import os, torch\ntorch.manual_seed(os.getpid())  # here\nprint(torch.rand(2))"
    ),
    "seed of torch after an optimizer": Program(
        "seed-value",
        "import os, torch\nfree = torch.ones(2, requires_grad=True)\ntorch.optim.SGD([free], 0.1)\n"
        "torch.manual_seed(os.getpid())  # here\nprint(torch.rand(2))",
    ),
    "seed of a torch generator": Program(
        "seed-value",
        "import os, torch\npid = os.getpid()\ng = torch.Generator().manual_seed(pid)  # here\nprint(torch.rand(2, generator=g))",
    ),
    "seed by keyword": Program(
        "seed-value", "import os, numpy as np\nr = np.random.default_rng(seed=os.getpid())  # here\nprint(r.random())"
    ),
    "array": Program(
        "uninitialized-array",
        "import os, numpy as np\njunk = [np.frombuffer(os.urandom(800), np.int64) ^ 1 for _ in range(50)]\ndel junk\n"
        "print(np.empty(100).tobytes().hex())  # here",
    ),
}
"""Programs whose output differs in every run."""


@pytest.mark.parametrize(
    "name",
    only_named(
        {name for name, one in PROGRAMS.items() if "torch" not in one.text} | {"torch.seed"}, PROGRAMS, "probes"
    ),
)
def test_source_differs_and_can_be_fixed(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    stage = Stage(tmp_path, program.text)
    for _ in range(5):  # a value that the machine decides may happen to be equal in two runs
        found = [one for one in stage.differing() if one.source == program.source]
        if found:
            break
    request = ProbeRequest(fixed_sources=(program.source,))

    assert [(one.source, one.site.line) for one in found][:1] == [(program.source, program.line)]
    assert found[0].differs is True
    if program.source != "seed-value":
        first, second = stage.fixed(*found), stage.fixed(*found)
        assert first.status == 0, first.stderr
        if " object at " not in first.stdout:
            assert first.stdout == second.stdout
    assert stage.probed(request=request).status == 0


def test_a_clock_shifted_at_one_line_stands_still_at_another(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "import time\nprint(time.time())\nprint(time.monotonic())\n")
    places = [FixedSource(stage.main, 2, "clock"), FixedSource(stage.main, 3, "shifted clock")]
    first, second = (stage.probed(request=ProbeRequest(fixed=tuple(places))).stdout.split() for _ in range(2))

    assert first[0] == second[0] and first[1] != second[1]


@pytest.mark.parametrize(("seed", "apart"), [("time.time_ns() + number", 3), ("base", 1)])
def test_processes_that_seed_themselves_are_counted_if_each_has_its_own_seed(
    tmp_path: Path, seed: str, apart: int
) -> None:
    program = f"""
        import random, sys, time
        from multiprocessing import get_context
        def work(number, base):
            random.seed({seed})  # here
        if __name__ == "__main__":
            base = time.time_ns()
            for number in range(3):
                child = get_context("fork").Process(target=work, args=(number, base))
                child.start()
                child.join()
    """
    [found] = [one for one in Stage(tmp_path, program).differing() if one.source == "seed-value"]

    assert found.apart == apart


COMPLETIONS = {
    "as_completed": """
        from concurrent.futures import ThreadPoolExecutor, as_completed
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(slow, n) for n in range(8)]
            for future in as_completed(futures):  # here
                print(future.result())
    """,
    "as_completed of a dictionary": """
        from concurrent.futures import ThreadPoolExecutor, as_completed
        with ThreadPoolExecutor(8) as pool:
            futures = {pool.submit(slow, n): n for n in range(8)}
            for future in as_completed(futures):  # here
                print(futures[future])
    """,
    "as_completed of a set": """
        import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            futures = {pool.submit(slow, n) for n in range(8)}
            for future in concurrent.futures.as_completed(futures):  # here
                print(future.result())
    """,
    "first completed": """
        from concurrent.futures import ThreadPoolExecutor, wait, FIRST_COMPLETED
        with ThreadPoolExecutor(8) as pool:
            pending = [pool.submit(slow, n) for n in range(8)]
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)  # here
                for future in [f for f in pending if f in done]:
                    print(future.result())
                    pending.remove(future)
    """,
    "imap_unordered": """
        from multiprocessing.pool import ThreadPool
        with ThreadPool(8) as pool:
            for result in pool.imap_unordered(slow, range(8)):  # here
                print(result)
    """,
    "imap_unordered of processes": """
        import multiprocessing
        if __name__ == "__main__":
            with multiprocessing.Pool(4) as pool:
                for result in pool.imap_unordered(slow, range(8), chunksize=1):  # here
                    print(result)
    """,
    "asyncio": """
        import asyncio
        async def later(n):
            await asyncio.sleep(delay(n))
            return n
        async def main():
            for next_one in asyncio.as_completed([later(n) for n in range(8)]):  # here
                print(await next_one)
        asyncio.run(main())
    """,
    "asyncio first completed": """
        import asyncio
        async def later(n):
            await asyncio.sleep(delay(n))
            return n
        async def main():
            pending = [asyncio.create_task(later(n)) for n in range(8)]
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)  # here
                for task in [t for t in pending if t in done]:
                    print(task.result())
                    pending.remove(task)
        asyncio.run(main())
    """,
}
SLOW = """
import os, time
def delay(n):
    return 0.08 * (n if os.environ["WAY"] == "1" else 7 - n) + 0.01
def slow(n):
    time.sleep(delay(n))
    return n
"""


@pytest.mark.parametrize("name", COMPLETIONS)
def test_order_of_completion_is_noted_and_can_be_fixed_to_the_order_of_submission(tmp_path: Path, name: str) -> None:
    import textwrap

    from determinism.diagnose.sources import differing_sources

    text = SLOW + textwrap.dedent(COMPLETIONS[name])
    stage = Stage(tmp_path, text)
    found = differing_sources(stage.noted(WAY="1"), stage.noted(WAY="2"))
    found = [one for one in found if one.source == "completion-order"]

    assert [one.site.line for one in found] == [Program("", text).line]
    assert found[0].differs is True
    assert stage.fixed(*found, WAY="2").stdout.split() == [str(n) for n in range(8)]
    if "processes" not in name:
        assert stage.plain(WAY="2").stdout.split() != [str(n) for n in range(8)]


PRODUCERS = """
    import collections, queue, threading, time, os
    found = {make}
    def produce(n):
        time.sleep(0.1 * (n if os.environ["WAY"] == "1" else 3 - n))
        found.{put}(n)
    threads = [threading.Thread(target=produce, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print([found.{take}() for _ in threads])
"""


@pytest.mark.parametrize(
    ("make", "put", "take"), [("queue.Queue()", "put", "get"), ("collections.deque()", "append", "popleft")]
)
def test_queue_of_several_producers_is_noted(tmp_path: Path, make: str, put: str, take: str) -> None:
    from determinism.diagnose.sources import differing_sources

    stage = Stage(tmp_path, PRODUCERS.format(make=make, put=put, take=take))
    found = differing_sources(stage.noted(WAY="1"), stage.noted(WAY="2"))

    assert [(one.source, one.site.line, one.differs) for one in found] == [("queue-order", 12, True)]


def test_a_deque_in_a_program_without_threads_is_not_a_source(tmp_path: Path) -> None:
    program = """
        import collections, os
        waiting = collections.deque([os.environ.get("WAY"), 2])
        print(waiting.popleft(), waiting.pop())
    """
    from determinism.diagnose.sources import differing_sources

    stage = Stage(tmp_path, program)
    found = differing_sources(stage.noted(WAY="1"), stage.noted(WAY="2"))
    assert [one for one in found if one.source == "queue-order"] == []


def test_values_that_cannot_be_compared_are_noted_as_unknown(tmp_path: Path) -> None:
    program = """
        import queue
        class Result: pass
        found = queue.SimpleQueue()
        found.put(Result())
        found.put((1, Result()))
        print(type(found.get()))
        print(type(found.get()))
    """
    assert [(one.source, one.site.line, one.differs) for one in Stage(tmp_path, program).differing()] == [
        ("queue-order", 7, None),
        ("queue-order", 8, None),
    ]


TIMERS = {
    "alarm": "signal.signal(signal.SIGALRM, ring)\nsignal.alarm(1)  # here",
    "interval": "signal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 0.2)  # here",
    "thread": "timer = threading.Timer(0.2, ring)  # here\ntimer.start()",
}
"""Timers that go off while a program counts."""


@pytest.mark.parametrize("name", TIMERS)
def test_a_timer_goes_off_at_once_when_fixed(tmp_path: Path, name: str) -> None:
    program = (
        "import signal, threading\nrung = []\ndef ring(*_): rung.append(1)\n"
        f"{TIMERS[name]}\ncount = 0\nwhile not rung: count += 1\nprint(count)\nsignal.alarm(0)\n"
    )
    stage = Stage(tmp_path, program)
    [found] = stage.differing()

    assert (found.source, found.site.line, found.differs) == ("timer", Program("", program).line, False)
    assert any(
        stage.plain().stdout != "0\n" for _ in range(5)
    )  # on a busy machine, the timer may go off before the counting starts
    assert stage.fixed(found).stdout == "0\n"


def test_a_timeout_that_never_goes_off_is_not_noted(tmp_path: Path) -> None:
    program = """
        import signal, threading
        signal.signal(signal.SIGALRM, print)
        for _ in range(3):
            signal.alarm(60)
            timer = threading.Timer(60, print)
            timer.start()
            timer.cancel()
            signal.alarm(0)
        print(signal.getsignal(signal.SIGALRM))
    """
    assert [one for one in documents(Stage(tmp_path, program).noted()) if "digest" in one] == []


def test_an_unhandled_alarm_still_ends_the_program(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.2)\ntime.sleep(9)\n")

    assert stage.probed(request=ProbeRequest(fixed_sources=("timer",))).status == -14


TRAINING = {
    "checkpoint-rng": """
        import torch
        from torch.utils.checkpoint import checkpoint
        torch.manual_seed(0)
        x = torch.ones(64, requires_grad=True)
        y = checkpoint(torch.dropout, x, 0.5, True, use_reentrant=True, preserve_rng_state=False)  # here
        torch.rand(3)
        y.sum().backward()
        print((y.detach() == x.grad).all().item())
    """,
    "loader-order": """
        from torch.utils.data import DataLoader
        loader = DataLoader([1, 2, 3], in_order=False)  # here
        print(loader.in_order)
    """,
}


@pytest.mark.parametrize("source", only_named(["loader-order"], TRAINING, "probes"))
def test_choice_is_noted_and_reverted_when_fixed(tmp_path: Path, source: str) -> None:
    stage = Stage(tmp_path, TRAINING[source])
    # The first checkpoint imports SymPy, which creates unseeded generators.
    [found] = [one for one in stage.differing() if not one.is_in_library]

    assert (found.source, found.differs) == (source, None)
    assert found.site.code.endswith("# here")
    assert stage.plain().stdout == "False\n"
    assert stage.fixed(found).stdout == "True\n"


def test_equal_values_are_not_candidates(tmp_path: Path) -> None:
    program = """
        import random, numpy as np, os
        random.seed(1)
        np.random.seed(2)
        rng = np.random.default_rng(3)
        print(random.random(), np.random.rand(), rng.random(), hash(3), os.listdir("."))
        for name in {1, 2, 3}:
            print(name)
    """
    stage = Stage(tmp_path, program)

    assert stage.differing() == []
    assert {one["source"] for one in documents(tmp_path / "notes-1") if "source" in one} >= {
        "seed-value", "python-random", "numpy-random", "hash", "listing", "set-order",
    }  # fmt: skip


ALIKE = {
    "same output": "import subprocess\nsubprocess.check_output(['echo', 'words'])",
    "other question": "import os, subprocess\nsubprocess.check_output(['echo', str(os.getpid())])",
    "other thing given": "import os, subprocess\nsubprocess.run(['cat'], input=os.urandom(9), capture_output=True)",
    "other question of threads": "import os, subprocess\nfrom concurrent.futures import ThreadPoolExecutor\n"
    "def ask(n): return subprocess.check_output(['echo', str(os.getpid() * 0 ** n)])\n"
    "with ThreadPoolExecutor(2) as pool: print(list(pool.map(ask, range(4))))",
    "output that nobody gets": "import subprocess\nsubprocess.run('shuf -i 1-99 > /dev/null', shell=True)",
    "output that nobody reads": "import subprocess\nsubprocess.Popen(['shuf', '-i', '1-99'], stdout=-1).wait()",
    "same rows": f"{TABLE}print(con.execute('SELECT n FROM t').fetchall(), list(con.execute('SELECT s FROM t')))",
    "rows that are sorted": f"{TABLE}print(sorted(con.execute('SELECT n FROM t ORDER BY RANDOM()').fetchall()))",
    "other query": f"{TABLE}import os\nprint(con.execute('SELECT ?', (os.getpid(),)).fetchone())",
}
"""Answers of programs and databases that are equal for the same question, or that the program never reads."""


@pytest.mark.parametrize("name", ALIKE)
def test_an_answer_differs_only_if_the_question_is_the_same(tmp_path: Path, name: str) -> None:
    found = Stage(tmp_path, ALIKE[name]).differing()
    assert [one for one in found if one.source in ("program-output", "query-result")] == []


def test_a_pandas_table_is_compared_by_its_rows(tmp_path: Path) -> None:
    pandas = """
        class Table:
            def __init__(self, values):
                self.values = values
        class Values(list):
            def tolist(self):
                return list(self)
        def read_sql(sql, con):
            return Table(Values(con.execute(sql).fetchall()))
    """
    text = f"{TABLE}import pandas\ntable = pandas.read_sql(con=con, sql={DRAWN!r})  # here\nprint(table.values)"
    stage = Stage(tmp_path, text, pandas=pandas)
    [found] = [one for one in stage.differing() if one.site.file == stage.main]
    assert (found.source, found.site.line, found.differs) == ("query-result", Program("", text).line, True)
    assert stage.fixed(found).stdout == stage.fixed(found).stdout != stage.plain().stdout


def test_no_part_of_an_answer_is_stored(tmp_path: Path) -> None:
    text = f"{TABLE}import os, subprocess\nprint(con.execute('SELECT s, n FROM t LIMIT 3').fetchall())\n"
    text += "print(os.popen('echo secret').read(), subprocess.check_output(['echo', 'secret', 'ab']))"
    notes = [one for one in documents(Stage(tmp_path, text).noted()) if one.get("digest")]
    assert [one["source"] for one in notes] == ["query-result", "program-output", "program-output"]
    assert {one["shown"].split()[0] for one in notes} == {"answer"}
    assert not any("secret" in str(value) for one in notes for name, value in one.items() if name != "code")


def test_programs_and_databases_answer_the_same_with_probes(tmp_path: Path) -> None:
    text = (
        TABLE
        + """
import io, os, subprocess
con.row_factory = sqlite3.Row
cur = con.execute("SELECT n FROM t")
for row in cur:
    break
print(type(cur), tuple(row), next(cur)["n"], len(cur.fetchall()), cur.fetchone())
with os.popen("printf 'a\\nb\\nc'") as pipe:
    print(type(pipe), pipe.readline(), [*pipe], pipe.read())
program = subprocess.Popen(["printf", "a\\nb"], stdout=subprocess.PIPE)
print(isinstance(program, subprocess.Popen), type(program.stdout), list(program.stdout), program.wait())
print(subprocess.run(["false"]), subprocess.getstatusoutput("echo a; exit 3"), io.StringIO("a").read())
for command in (["false"], ["no such program"], [], 3):
    try:
        subprocess.check_output(command)
    except Exception as error:
        print(repr(error))
try:
    con.execute("SELECT")
except sqlite3.Error as error:
    print(repr(error))
"""
    )
    stage = Stage(tmp_path, text)
    plain = stage.plain()
    assert plain.status == 0, plain.stderr
    (tmp_path / "notes").mkdir()
    assert stage.probed(request=ProbeRequest(notes=tmp_path / "notes")) == plain


def test_every_standard_function_listed_as_a_source_exists() -> None:
    import importlib
    import sys

    missing = []
    for function in FUNCTIONS:
        if function.module.partition(".")[0] not in sys.stdlib_module_names:
            continue
        found: object = importlib.import_module(function.module)
        for part in function.name.split("."):
            found = getattr(found, part, None)
        if found is None:
            missing.append(function.name)

    assert set(missing) <= {"binomialvariate", "Path.walk", "get_native_id", "getrandom", "fwalk"}


SEEDINGS = """
import random
import numpy as np
import torch

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.default_generator.manual_seed(0)
random.Random(0)
random.Random(1).seed(0)
np.random.default_rng(0)
np.random.RandomState(0)
np.random.RandomState(1).seed(0)
torch.Generator().manual_seed(0)
"""


def test_only_a_global_generator_counts_as_that_of_its_library(tmp_path: Path) -> None:
    folder = Stage(tmp_path, SEEDINGS).noted()
    lines = {
        library: sorted(site.line for site, _ in seeding_calls(folder, library))
        for library in ("random", "numpy", "torch")
    }
    assert lines == {"random": [6], "numpy": [7], "torch": [8, 9]}
    noted = {note["line"] for note in documents(folder) if note.get("source") == "seed-value"}
    assert noted == set(range(6, 16))


def test_the_set_seed_of_a_library_counts_for_every_generator_that_it_seeds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "from accelerate.utils.random import set_seed\nset_seed(0)\n")
    library = stage.folder / "accelerate" / "utils"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    (library / "random.py").write_text("import torch\ndef set_seed(seed):\n    torch.manual_seed(seed)\n")
    folder = stage.noted()
    lines = {
        library: [site.line for site, _ in seeding_calls(folder, library)]
        for library in ("random", "numpy", "torch", "tensorflow")
    }
    assert lines["random"] == lines["numpy"] == [2]
    assert 2 in lines["torch"]
    assert lines["tensorflow"] == []


BESIDE_NUMPY = (
    "import numpy as np\nimport torch\nother = np.random.RandomState(1)\ng = torch.Generator()\ng.seed()\n"
    "print(torch.rand(2, generator=g), other.rand())\n"
)


def test_a_generator_of_pytorch_is_seeded_as_such_in_a_file_that_makes_one_of_numpy(tmp_path: Path) -> None:
    [source] = Stage(tmp_path, BESIDE_NUMPY).differing()
    change = code_fix(source)
    assert change is not None and change.code == "g.manual_seed(0)"


RESEEDED = "import numpy as np\ndraws = np.random.RandomState(1)\ndraws.seed()\nprint(draws.rand())\n"


def test_a_generator_that_is_seeded_again_without_a_value_gets_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, RESEEDED)
    [source] = stage.differing()
    assert (source.source, source.site.line) == ("unseeded-generator", 3)
    assert len({stage.fixed(source).stdout for _ in range(2)}) == 1
    change = code_fix(source)
    assert change is not None and change.code == "draws.seed(0)"


def test_seeding_in_a_function_of_a_library_is_reported_at_the_line_that_calls_it(tmp_path: Path) -> None:
    lines = (
        "import random\nimport torch\ndef seed_everything(seed):\n    random.seed(seed)\n    torch.manual_seed(seed)\n"
    )
    stage = Stage(tmp_path, "import seeding\nprint(1)\nseeding.seed_everything(3)\n")
    library = tmp_path / "site-packages" / "seeding"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(lines)
    folder = stage.noted(PYTHONPATH=str(library.parent))
    for name in ("random", "torch"):
        [(site, _)] = seeding_calls(folder, name)
        assert (site.file, site.line, site.code) == (stage.main, 3, "seeding.seed_everything(3)")
