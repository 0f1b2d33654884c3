"""Likely causes, named before any experiment: the line that a differing value came from, found in the records and the program's text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from determinism.comparison.divergence import DeadDifference, Divergence
from determinism.diagnose.experiments import Hypothesis
from determinism.diagnose.fixes import code_change, fixes_for
from determinism.diagnose.hypotheses import likely_hypotheses
from determinism.diagnose.program_flow import CALLS
from determinism.probes.child import FUNCTIONS
from determinism.trace.opening import open_trace
from determinism.trace.schema import STEP_OP, Frame
from determinism.types import Kind
from tests.builders import make_different, make_divergence, make_output
from tests.traces import TraceBuilder

USED = "# used"
ORIGIN = "# origin"


def likely(
    folder: Path,
    text: str,
    kind: Kind = Kind.DATA,
    *,
    ranks: int = 0,
    racy: Sequence[str] = (),
    environment: Sequence[tuple[str, str, str]] = (),
    **changes: Any,
) -> tuple[list[Hypothesis], str]:
    """Likely causes for a program that diverges at the line marked as used, with this many ranks, and the program's text."""
    text = textwrap.dedent(text).lstrip("\n")
    file = folder / "train.py"
    file.write_text(text, encoding="utf-8")
    frames = tuple(
        Frame(str(file), number, "f", line.strip()) for number, line in enumerate(text.splitlines(), 1) if USED in line
    )
    divergence: Divergence = replace(
        make_divergence(kind=kind, site=frames[0], op="aten::lift_fresh", outputs=()),
        stack=frames,
        module=None,
        **changes,
    )
    trace = folder / f"trace-{len(list(folder.iterdir()))}"
    builder = TraceBuilder(trace, racy=list(racy), framework="torch")
    builder.add("aten::lift_fresh", outputs=["a"], site=(str(file), frames[0].line))
    for number in range(ranks):
        builder.beside(f"main.rank-{number}")
    comparison = make_different(first_divergence=divergence, environment=environment)
    return likely_hypotheses(comparison, [open_trace(builder.close())]), text


def named(folder: Path, text: str, kind: Kind = Kind.DATA, **changes: Any) -> tuple[str | None, bool]:
    """The likely cause, and whether its first line is the line marked as the origin."""
    found, text = likely(folder, text, kind, **changes)
    if not found:
        return None, False
    (one,) = found
    line = text.splitlines()[one.sites[0].line - 1]
    return one.cause, ORIGIN in line


ORIGINS = {
    "draw-that-leads-to-another": (
        """
        import random
        def pair(groups, rows):
            chosen = random.choice(["a", "b"])  # origin
            first = groups[chosen][random.randrange(len(groups[chosen]))]
            return torch.tensor(rows[first])  # used
        """,
        "seed-missing-python",
        ("import random", "import random\nrandom.seed(1)"),
    ),
    "draw-after-one-for-something-else": (
        """
        import random
        def pair(rows):
            name = random.choice(["a", "b"])
            row = torch.tensor(rows[random.randrange(9)])  # used # origin
            return row, name
        """,
        "seed-missing-python",
        ("import random", "import random\nrandom.seed(1)"),
    ),
    "numpy-global": (
        """
        import numpy as np
        noise = np.random.normal(size=3)  # origin
        x = torch.from_numpy(noise)  # used
        """,
        "seed-missing-numpy",
        ("import numpy as np", "import numpy as np\nnp.random.seed(1)"),
    ),
    "statement-in-the-line-of-its-function": (
        """
        import numpy as np
        def rows(): return torch.tensor(np.random.rand(3))  # used # origin
        """,
        "seed-missing-numpy",
        ("import numpy as np", "import numpy as np\nnp.random.seed(1)"),
    ),
    "bytes-of-a-device": (
        """
        import struct
        def entropy():
            with open("/dev/urandom", "rb") as file:  # origin
                return struct.unpack("I", file.read(4))[0]
        x = torch.tensor(entropy() % 7)  # used
        """,
        "entropy",
        ("/dev/urandom", "/data/constant"),
    ),
    "a-generator-that-threads-share": (
        """
        import numpy
        from concurrent.futures import ThreadPoolExecutor
        shared = numpy.random.default_rng(0)
        def load(number):
            return number + shared.normal()  # origin
        class Loader:
            def __init__(self):
                self.pool = ThreadPoolExecutor(4)
            def __iter__(self):
                rows = list(self.pool.map(load, range(9)))
                yield torch.tensor(rows)  # used
        """,
        "shared-generator",
        ("shared.normal()", "numpy.random.default_rng(number).normal()"),
    ),
    "queue-of-threads": (
        """
        import queue
        from threading import Thread
        ready = queue.Queue()
        for number in range(4):
            Thread(target=work, args=(ready, number)).start()
        x = torch.tensor(ready.get())  # used # origin
        """,
        "queue-order",
        ("for number in range(4):", "if True:"),
    ),
    "queue-of-processes": (
        """
        import torch.multiprocessing as mp
        context = mp.get_context("spawn")
        class Learner:
            def __init__(self):
                self.inbox = context.Queue(maxsize=4)
        learner = Learner()
        actors = [context.Process(target=act, args=(k, learner.inbox)) for k in range(2)]
        states = learner.inbox.get()  # origin
        x = torch.from_numpy(states)  # used
        """,
        "queue-order",
        (
            "[context.Process(target=act, args=(k, learner.inbox)) for k in range(2)]",
            "[context.Process(target=act, args=(0, learner.inbox))]",
        ),
    ),
    "rows-of-a-table": (
        """
        import pandas as pd
        def balanced(table):
            parts = [part.sample(n=3) for _, part in table.groupby("target")]  # origin
            return pd.concat(parts)
        rows = balanced(load())
        x = torch.tensor(rows.to_numpy())  # used
        """,
        "seed-missing-numpy",
        ("sample(n=3)", "sample(n=3, random_state=0)"),
    ),
    "own-function-that-seeds-others": (
        """
        import numpy
        def set_seed(seed):
            torch.manual_seed(seed)
        set_seed(3)
        x = torch.tensor(numpy.random.permutation(9))  # used # origin
        """,
        "seed-missing-numpy",
        ("torch.manual_seed(seed)", "numpy.random.seed(seed)"),
    ),
    "split-of-a-data-set": (
        """
        from sklearn.model_selection import train_test_split
        train, test = train_test_split(read("data.csv"), test_size=0.2)  # origin
        x = torch.as_tensor(train)  # used
        """,
        "seed-missing-numpy",
        ("test_size=0.2", "test_size=0.2, random_state=0"),
    ),
    "forest": (
        """
        from sklearn.ensemble import RandomForestClassifier
        forest = RandomForestClassifier(n_estimators=6)  # origin
        forest.fit(a, b)
        x = torch.from_numpy(forest.predict_proba(a))  # used
        """,
        "seed-missing-numpy",
        ("n_estimators=6", "n_estimators=6, random_state=0"),
    ),
    "python-through-a-function": (
        """
        import random
        def drop(values):
            return [v for v in values if random.random() < 0.5]  # origin
        kept = drop([1, 2, 3])
        x = torch.tensor(kept)  # used
        """,
        "seed-missing-python",
        ("import random", "import random\nrandom.seed(1)"),
    ),
    "generator-of-a-data-set": (
        """
        from numpy.random import default_rng
        class Noisy:
            def __init__(self):
                self.rng = default_rng()  # origin
            def __getitem__(self, index):
                return self.rng.normal() + index
        loader = DataLoader(Noisy())
        for batch in loader:
            x = model(batch)  # used
        """,
        "generator-unseeded",
        ("default_rng()", "default_rng(3)"),
    ),
    "set-of-words": (
        """
        def vocabulary(texts):
            words = set()
            for text in texts:
                words.update(text.split())
            return {word: number for number, word in enumerate(words)}  # origin
        known = vocabulary(["a b", "c"])
        x = torch.tensor([known[word] for word in "a b".split()])  # used
        """,
        "hash-order",
        ("enumerate(words)", "enumerate(sorted(words))"),
    ),
    "set-of-objects": (
        """
        class Node:
            pass
        nodes = {Node() for _ in range(9)}
        x = torch.tensor([node.value for node in nodes])  # used # origin
        """,
        "address-order",
        ("{Node() for _ in range(9)}", "[Node() for _ in range(9)]"),
    ),
    "listing-of-a-parameter": (
        """
        import os
        def load(names):
            return torch.tensor([size(name) for name in names])  # used
        load(os.listdir("data"))  # origin
        """,
        "listing-order",
        ('os.listdir("data")', 'sorted(os.listdir("data"))'),
    ),
    "shuffled-in-place": (
        """
        import random
        order = list(range(9))
        random.shuffle(order)  # origin
        x = torch.tensor(order)  # used
        """,
        "seed-missing-python",
        ("import random", "import random\nrandom.seed(0)"),
    ),
    "seed-by-the-clock": (
        """
        import random, time
        random.seed(int(time.time()))  # origin
        x = torch.tensor(random.random())  # used
        """,
        "seed-varies",
        ("int(time.time())", "7"),
    ),
    "hash-of-text": (
        """
        fold = [name for name in names if hash(name) % 2]  # origin
        x = torch.tensor([len(name) for name in fold])  # used
        """,
        "hash-value",
        ("hash(name)", "crc32(name)"),
    ),
    "added-up-by-threads": (
        """
        import threading
        def work(rows):
            global total
            for row in rows:
                with lock:
                    total += row.sum()  # origin
        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        x = torch.tensor(total)  # used
        """,
        "thread-race",
        ("global total", "total = 0"),
    ),
    "appended-in-a-pool": (
        """
        from concurrent.futures import ThreadPoolExecutor
        found = []
        def work(row):
            found.append(row.sum())  # origin
        with ThreadPoolExecutor() as pool:
            list(pool.map(work, rows))
        x = torch.tensor(found)  # used
        """,
        "thread-race",
        ("ThreadPoolExecutor", "ProcessPoolExecutor"),
    ),
    "an-array-that-threads-are-given": (
        """
        from threading import Thread
        def work(gradient, rows):
            gradient[:] += rows.sum()  # origin
        for part in parts:
            Thread(target=work, args=(gradient, part)).start()
        x = torch.from_numpy(gradient)  # used
        """,
        "thread-race",
        ("for part in parts:", "if parts:"),
    ),
    "an-attribute-that-methods-share": (
        """
        import threading
        class Statistics:
            def start(self):
                for part in self.parts:
                    threading.Thread(target=self.update, args=(part,)).start()
            def update(self, part):
                self.mean += part.mean()  # origin
        x = torch.tensor(statistics.mean)  # used
        """,
        "thread-race",
        ("self.mean += part.mean()", "self.means[part.number] = part.mean()"),
    ),
}


@pytest.mark.parametrize("name", ORIGINS)
def test_the_upstream_line_is_named_unless_it_is_seeded_or_ordered(name: str, tmp_path: Path) -> None:
    text, cause, (before, after) = ORIGINS[name]
    assert named(tmp_path, text) == (cause, True)
    assert before in text
    (tmp_path / "twin").mkdir()
    mended = textwrap.dedent(text).replace(before, after)
    assert named(tmp_path / "twin", mended) == (None, False)


def test_what_a_name_is_assigned_later_is_no_origin_of_its_first_value(tmp_path: Path) -> None:
    text = """
        import time
        import numpy as np
        seed = int(time.time())  # origin
        params = init(PRNGKey(seed))  # used
        order = np.arange(8)
        if len(params) > 9:
            np.random.shuffle(order)
        params = update(params, rows[order])
        """
    assert named(tmp_path, text) == ("clock", True)
    (tmp_path / "added").mkdir()
    added = text.replace("params = init(PRNGKey(seed))", "params += init(PRNGKey(seed))")
    assert named(tmp_path / "added", added) == ("seed-missing-numpy", False)


def test_an_unseeded_generator_is_likely_missing_its_seed(tmp_path: Path) -> None:
    text = """
    import torch
    layer = torch.nn.Linear(2, 2)  # used # origin
    """
    draws = {"op": "aten::uniform_"}
    assert named(tmp_path, text, Kind.RNG, **draws) == ("seed-missing-torch", True)
    seeded = text.replace("import torch\n", "import torch\n    torch.manual_seed(0)\n")
    assert named(tmp_path, seeded, Kind.RNG, **draws) == (None, False)
    own = text.replace("layer = torch.nn.Linear(2, 2)", "torch.nn.init.uniform_(weight, generator=own)")
    assert named(tmp_path, own, Kind.RNG, **draws) == (None, False)
    passed_on = text.replace("import torch\n", "import torch\n    for seed in (torch.manual_seed,): seed(0)\n")
    assert named(tmp_path, passed_on, Kind.RNG, **draws) == (None, False)
    unused = text.replace("import torch\n", "import torch\n    def seed_all():\n        torch.manual_seed(0)\n")
    assert named(tmp_path, unused, Kind.RNG, **draws) == ("seed-missing-torch", True)
    varies = text.replace("import torch\n", "import os, torch\n    torch.manual_seed(os.getpid())  # origin\n")
    assert named(tmp_path, varies, Kind.RNG, **draws) == ("seed-varies", True)


@pytest.mark.parametrize(
    ("listing", "cause"),
    [
        ("sorted(os.path.join(d, name) for name in os.listdir(d))", None),
        ("sorted([name for name in os.listdir(d) if name.endswith('.png')])", None),
        ("sorted(filter(is_image, os.listdir(d)))", None),
        ("os.listdir(d)\nnames.sort()", None),
        ("os.listdir(d)\nnames = sorted(names)", None),
        ("os.listdir(d)\nothers.sort()", "listing-order"),
        ("list(os.path.join(d, name) for name in os.listdir(d))", "listing-order"),
        ("list(filter(is_image, os.listdir(d)))", "listing-order"),
        ("[read(d, name) for name in os.listdir(d)]", "listing-order"),
    ],
)
def test_a_listing_that_is_sorted_by_way_of_a_comprehension_has_an_order(
    listing: str, cause: str | None, tmp_path: Path
) -> None:
    text = f"import os\nd = 'data'\nnames = {listing}\nx = torch.tensor(load(names))  # used\n"
    assert named(tmp_path, text)[0] == cause


OWN_SEED = """
import argparse, random, torch
arguments = argparse.ArgumentParser().parse_args()
if arguments.seed is None:
    arguments.seed = random.randint(1, 10000)  # drawn
random.seed(arguments.seed)
torch.manual_seed(arguments.seed)  # origin
layer = torch.nn.Linear(2, 2)  # used
"""


def test_a_seed_drawn_from_the_generator_that_it_seeds_is_likely(tmp_path: Path) -> None:
    draws = {"op": "aten::uniform_"}
    assert named(tmp_path, OWN_SEED, Kind.RNG, **draws) == ("seed-varies", True)
    ((one,), _) = likely(tmp_path, OWN_SEED, Kind.RNG, **draws)
    assert any(site.code.endswith("# drawn") for site in one.sites)
    seeded = OWN_SEED.replace("if arguments", "random.seed(0)\nif arguments")
    assert named(tmp_path, seeded, Kind.RNG, **draws) == (None, False)
    other = OWN_SEED.replace("random.seed(arguments.seed)", "random.seed(1)")
    assert named(tmp_path, other, Kind.RNG, **draws) == (None, False), "it may come first"


@pytest.mark.parametrize(("dtype", "shape"), [("uint32", (2,)), ("int64", (2,)), ("float32", (2,)), ("uint32", (3,))])
def test_a_seed_that_keras_draws_is_explained_by_pythons_generator(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    text = "import keras\nmodel = keras.Sequential([keras.layers.Dense(8)])\nmodel.fit(x, y)  # used\n"
    outputs = (make_output(dtype=dtype, shape=shape),)
    found, _ = likely(tmp_path, text, outputs=outputs)
    assert [one.cause for one in found] == ["seed-missing-python"] * (dtype != "float32" and shape == (2,))
    for seed in ("random.seed(0)", "keras.utils.set_random_seed(0)"):
        assert likely(tmp_path, f"import random\n{seed}\n{text}", outputs=outputs)[0] == []
    assert likely(tmp_path, text.replace("keras", "torch"), outputs=outputs)[0] == []
    within = text.replace("import keras", "import tensorflow as tf").replace("keras.", "tf.keras.")
    assert likely(tmp_path, within, outputs=outputs)[0] == found


@pytest.mark.parametrize(
    ("made", "cause", "sources"),
    [
        ("(os.getpid() * 7919 + int(time.time())) % 2**31", "seed-varies", {"clock", "process-id"}),
        ("int.from_bytes(os.urandom(4), 'little')", "seed-varies", {"entropy"}),
        ("hash(name) % 2**31", "hash-value", {"hash"}),
    ],
)
def test_a_seed_passed_through_functions_is_traced_to_its_origin(
    made: str, cause: str, sources: set[str], tmp_path: Path
) -> None:
    text = f"""
    import os, time, torch
    def set_seed(seed):
        torch.manual_seed(seed)
    if options.seed is None:
        options.seed = {made}  # origin
    set_seed(options.seed)
    layer = torch.nn.Linear(2, 2)  # used
    """
    draws = {"op": "aten::uniform_"}
    assert named(tmp_path, text, Kind.RNG, **draws) == (cause, True)
    ([one], _) = likely(tmp_path, text, Kind.RNG, **draws)
    assert {held.source for held in one.intervention.sources} == sources
    assert code_change(one) is not None
    (tmp_path / "twin").mkdir()
    assert named(tmp_path / "twin", text.replace(made, "7"), Kind.RNG, **draws) == (None, False)


@pytest.mark.parametrize(("ranks", "is_warned"), [(0, False), (1, False), (2, True)])
def test_a_constant_seed_comes_with_a_warning_if_ranks_would_share_it(
    ranks: int, is_warned: bool, tmp_path: Path
) -> None:
    text = "import os, torch\ntorch.manual_seed(os.getpid())  # origin\nlayer = torch.nn.Linear(2, 2)  # used\n"
    ([one], _) = likely(tmp_path, text, Kind.RNG, op="aten::uniform_", ranks=ranks)
    [fix] = fixes_for([one], None, None, None)
    assert ("2 ranks may run this line" in fix.title) == is_warned


def test_a_generator_of_its_own_is_not_explained_by_the_seed_of_the_global_one(tmp_path: Path) -> None:
    text = """
    import time
    import numpy as np
    np.random.seed(int(time.time()))
    RNG = np.random.default_rng()  # origin
    value = torch.tensor(RNG.normal(size=8))  # used
    """
    assert named(tmp_path, text) == ("generator-unseeded", True)
    seeded = text.replace("default_rng()", "default_rng(0)")
    assert named(tmp_path, seeded) == (None, False)
    of_the_system = text.replace("np.random.default_rng()", "random.SystemRandom()").replace("np.random", "random")
    assert named(tmp_path, of_the_system.replace("import time", "import random, time")) == ("entropy", True)


@pytest.mark.parametrize(
    ("call", "causes"),
    [
        ("", ["seed-missing-numpy"]),
        ("prepare(0)", ["seed-varies"]),
        ("pool(initializer=prepare)", ["seed-varies"]),
    ],
)
def test_a_seed_that_a_function_sets_matters_only_if_something_names_the_function(
    call: str, causes: list[str], tmp_path: Path
) -> None:
    text = f"""
    import time
    import numpy as np
    def prepare(worker):
        np.random.seed(int(time.time()))
    {call}
    value = torch.tensor(np.random.normal(size=8))  # used
    """
    assert [one.cause for one in likely(tmp_path, text)[0]] == causes


def test_hash_order_is_not_blamed_if_the_hash_seed_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ORIGINS["set-of-words"][0]
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert named(tmp_path, text) == (None, False)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert named(tmp_path, text) == ("hash-order", True)


def test_a_condition_matters_if_the_runs_took_different_branches(tmp_path: Path) -> None:
    text = """
    import random
    if random.random() < 0.5:  # origin
        x = torch.ones(3)  # used
    """
    assert named(tmp_path, text, Kind.STRUCTURE) == ("seed-missing-python", True)
    assert named(tmp_path, text, Kind.DATA) == (None, False)


def test_a_fallback_after_a_timeout_depends_on_the_time_limit(tmp_path: Path) -> None:
    text = """
    from concurrent.futures import TimeoutError
    for batch in batches:
        try:
            label = pool.submit(teacher, batch).result(timeout=0.01)  # origin
        except TimeoutError:
            label = student(batch)  # used
    """
    assert named(tmp_path, text, Kind.STRUCTURE) == ("clock", True)
    for number, (before, after) in enumerate(((("timeout=0.01"), ""), ("except TimeoutError", "except ValueError"))):
        (tmp_path / str(number)).mkdir()
        assert named(tmp_path / str(number), text.replace(before, after), Kind.STRUCTURE) == (None, False)
    # A value that arrived in time does not depend on the limit.
    used = text.replace("  # used", "").replace("  # origin", "  # used")
    assert named(tmp_path, used, Kind.DATA) == (None, False)


def test_a_kind_that_implies_a_cause_makes_it_likely(tmp_path: Path) -> None:
    text = "x = torch.empty(3)  # used # origin\n"
    place = Frame(str(tmp_path / "train.py"), 1, "f", "x = torch.empty(3)")
    found = named(tmp_path, text, Kind.UNINITIALIZED, allocated_at=place)
    assert found == ("uninitialized-memory", True)
    assert named(tmp_path, text, Kind.MUTATION, thread="saver") == ("thread-race", True)
    assert named(tmp_path, text, Kind.MUTATION) == ("changed-behind", True)
    assert named(tmp_path, text, Kind.MUTATION, shares_memory=True) == ("process-race", True)
    # The main thread read a tensor that another thread was writing.
    assert named(tmp_path, text, Kind.MUTATION, racy=["threads"]) == ("thread-race", True)
    assert named(tmp_path, text, Kind.OP) == (None, False)


@pytest.mark.parametrize("text", ["x = torch.tensor(y)  # used\ndef broken(:\n", "x = torch.tensor(y)  # used\n"])
def test_an_unparsable_or_uninformative_program_has_no_likely_cause(text: str, tmp_path: Path) -> None:
    assert named(tmp_path, text) == (None, False)


def test_no_line_is_likely_if_the_environments_differ(tmp_path: Path) -> None:
    text, _, _ = ORIGINS["numpy-global"]
    found, _ = likely(tmp_path, text)
    assert found
    comparison = make_different(
        first_divergence=make_divergence(kind=Kind.DATA), environment=[("package numpy", "1.0", "2.0")]
    )
    assert likely_hypotheses(comparison, [open_trace(next(tmp_path.glob("trace-*")))]) == []


def test_files_that_changed_since_the_run_are_not_read(tmp_path: Path) -> None:
    text, _, _ = ORIGINS["numpy-global"]
    assert named(tmp_path, text) == ("seed-missing-numpy", True)
    (trace,) = tmp_path.glob("trace-*")
    file = tmp_path / "train.py"
    text = file.read_text(encoding="utf-8")
    number, line = next((number, line) for number, line in enumerate(text.splitlines(), 1) if USED in line)
    frame = Frame(str(file), number, "f", line.strip())
    different = make_different(
        first_divergence=replace(make_divergence(kind=Kind.DATA, site=frame, op="aten::lift_fresh"), stack=(frame,))
    )
    assert likely_hypotheses(different, [open_trace(trace)])
    for changed in (f"import os\n{text}", text.replace(USED, "# changed"), "", "import numpy as np\n"):
        file.write_text(changed, encoding="utf-8")
        assert likely_hypotheses(different, [open_trace(trace)]) == []


IN_TEXT = {
    "listing",
    "clock",
    "machine-state",
    "entropy",
    "process-id",
    "hash",
    "id",
    "completion-order",
    "uninitialized-array",
}
"""Sources that a call in the text reveals by itself; for generators, it must be known whether they are seeded."""
SHOWN_AS = {"builtins.": "", "concurrent.futures._base.": "concurrent.futures.", "asyncio.tasks.": "asyncio."}
BY_ARGUMENTS = {"concurrent.futures.wait", "asyncio.wait"}


def test_calls_known_from_the_text_are_those_that_probes_note() -> None:
    noted = {}
    for one in FUNCTIONS:
        name = f"{one.module}.{one.name}"
        for module, shown in SHOWN_AS.items():
            name = shown + name.removeprefix(module) if name.startswith(module) else name
        is_method = "." in one.name and one.name.partition(".")[0] not in ("datetime", "date")
        if one.source in IN_TEXT and not is_method and one.module != "torch":
            noted[name] = one.source
    assert {name: source for name, source in noted.items() if name not in BY_ARGUMENTS} == CALLS


def test_imported_files_are_read_even_if_nothing_in_them_was_recorded(tmp_path: Path) -> None:
    package = tmp_path / "data"
    package.mkdir()
    (package / "__init__.py").write_text("from .splits import split\n")
    (package / "splits.py").write_text("import numpy\ndef split(rows):\n    return numpy.random.permutation(rows)\n")
    program = "import data\nrows = data.split(9)\nx = torch.from_numpy(rows)  # used\n"
    old = (1_000_000_000, 1_000_000_000)
    for file in package.iterdir():
        os.utime(file, old)
    found, _ = likely(tmp_path, program)
    assert [(one.cause, one.sites[0].file, one.sites[0].line) for one in found] == [
        ("seed-missing-numpy", str(package / "splits.py"), 3)
    ]
    # A framework may be in the same folder as the program.
    package.rename(tmp_path / "torch")
    assert likely(tmp_path, program.replace("data", "torch"))[0] == []
    (tmp_path / "torch").rename(package)
    # A file that changed after the run is not the file that ran.
    os.utime(package / "splits.py", (4_000_000_000, 4_000_000_000))
    assert likely(tmp_path, program)[0] == []


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        ("float(torch.load(folder + '/x.pt'))", None),
        ("sqlite3.connect(folder).execute('SELECT x').fetchone()", None),
        ("Data(folder)[0]", None),
        ("hash(folder) % 7", "entropy"),
        ("numpy.random.default_rng(list(folder.encode())).normal()", "entropy"),
        ("Data(run_name)[0]", None),
        ("hash(run_name) % 7", "clock"),
    ],
)
def test_the_name_of_a_run_or_a_temporary_file_does_not_affect_values(
    use: str, cause: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    made = "run_name = f'run-{int(time.time())}'" if "run_name" in use else "folder = tempfile.mkdtemp()"
    text = f"import sqlite3, tempfile, time\n{made}  # origin\nx = torch.tensor({use})  # used\n"
    assert named(tmp_path, text) == (cause, cause is not None)


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ("con.execute('SELECT x FROM t ORDER BY RANDOM() LIMIT 8')", "query-result"),
        ("con.execute(QUERY)", "query-result"),
        ("con.execute('SELECT x FROM t ORDER BY RAND(5)')", None),
        ("con.execute('SELECT x FROM t')", None),
        ("subprocess.run(['shuf', '-n', '8', name], capture_output=True).stdout.split()", "program-output"),
        ("os.popen(f'sort -R {name}').read().split()", "program-output"),
        ("subprocess.check_output('echo $RANDOM', shell=True)", "program-output"),
        ("subprocess.check_output(['shuf', '--random-source=/etc/hostname', name])", None),
        ("subprocess.check_output(['sort', '-r', '-n', 'shuf.txt'])", None),
        ("subprocess.check_output(['date'])", None),
    ],
)
def test_a_query_or_command_with_a_random_result_is_likely_the_cause(
    asked: str, cause: str | None, tmp_path: Path
) -> None:
    text = f"""
        import os, sqlite3, subprocess
        QUERY = "SELECT x FROM t " \\
            "ORDER BY random ( )"
        def rows(con, name):
            return [float(x) for x in {asked}]  # origin
        x = torch.tensor(rows(con, 'a'))  # used
    """
    assert named(tmp_path, text) == (cause, cause is not None)


@pytest.mark.parametrize(("number", "is_named"), [("1 + int(load) % 2", True), ("2", False)])
def test_a_thread_count_that_varies_between_runs_is_traced_to_its_source(
    number: str, is_named: bool, tmp_path: Path
) -> None:
    text = f"import os\nload = os.getloadavg()[0]  # origin\ntorch.set_num_threads({number})\nx = a @ b  # used\n"
    found, _ = likely(tmp_path, text, Kind.OP, environment=[("torch.get_num_threads()", "1", "2")])
    assert [(one.cause, one.sites[0].line) for one in found] == [("machine-state", 2)] * is_named


@pytest.mark.parametrize(
    ("racy", "op", "is_named"), [(["threads"], STEP_OP, True), ([], STEP_OP, False), (["threads"], "aten::add", False)]
)
def test_a_thread_that_writes_to_state_of_the_main_thread_is_a_race_at_its_line(
    racy: list[str], op: str, is_named: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text("def update():\n    shadow.mul_(0.9)\noptimizer.step()\n")
    held, written = Frame(str(file), 3, "f", "optimizer.step()"), Frame(str(file), 2, "update", "shadow.mul_(0.9)")
    divergence = replace(make_divergence(kind=Kind.DATA, site=held, op=op, outputs=()), stack=(held,), thread=None)
    comparison = make_different(
        first_divergence=divergence,
        divergences=(divergence,),
        dead_first=[DeadDifference(0, "init", "aten::mul_", written)],
    )
    builder = TraceBuilder(tmp_path / "trace", racy=racy)
    builder.add("aten::lift_fresh", outputs=["a"], site=(str(file), 3))
    found = likely_hypotheses(comparison, [open_trace(builder.close())])
    assert [(one.cause, one.sites[0].line) for one in found] == [("thread-race", 2)] * is_named
