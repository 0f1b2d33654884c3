"""The fix of a source is the smallest change of its line, and the changed program gives the same result in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.diagnose.code_changes import code_fix
from determinism.diagnose.sources import Source, SourceSite
from determinism.run_spec import CodeChange, ProbeRequest
from tests.e2e.probing import Stage, documents

WORDS = "words = set('the quick brown fox jumps over a lazy dog'.split())\n"
OBJECTS = "class Layer:\n    pass\nlayers = [Layer() for _ in range(40)]\nnumbers = {id(l): n for n, l in enumerate(layers)}\n"
SLOW = "import time\ndef slow(n):\n    time.sleep(0)\n    return n\n"


def fix_of(stage: Stage, source: str, number: int = 0) -> CodeChange | None:
    """Return the change for a source of a program, based on what is noted when the program runs."""
    note = [one for one in documents(stage.noted()) if one.get("source") == source][number]
    names = ("file", "line", "column", "end_line", "end_column", "function", "code")
    site = SourceSite(**{name: note[name] for name in names})
    return code_fix(
        Source(
            source,
            site,
            "main",
            None,
            note["thread"],
            (1, 1),
            True,
            0,
            (0, 0),
            (None, None),
            note.get("elements"),
            note.get("key"),
            note.get("argument"),
        )
    )


CHANGES: dict[str, tuple[str, str, str]] = {
    "for": ("set-order", WORDS + "for w in words:  # each\n    print(w)", "for w in sorted(words):  # each"),
    "for a set that is made": ("set-order", WORDS + "for w in set(words): print(w)", "for w in sorted(set(words)): print(w)"),
    "list": ("set-order", WORDS + "print(list(words))", "print(sorted(words))"),
    "tuple": ("set-order", WORDS + "print(tuple(words))", "print(tuple(sorted(words)))"),
    "enumerate": ("set-order", WORDS + "print({w: i for i, w in enumerate(words)})", "print({w: i for i, w in enumerate(sorted(words))})"),
    "second argument": ("set-order", WORDS + "print(list(zip([1, 2], words)))", "print(list(zip([1, 2], sorted(words))))"),
    "letters before it": ("set-order", WORDS + "print('äöü', ' '.join(words))", "print('äöü', ' '.join(sorted(words)))"),
    "mixed elements": ("set-order", "print([x for x in {'a', 1, 'b', 'c'}])", "print([x for x in sorted({'a', 1, 'b', 'c'}, key=str)])"),
    "pairs": ("set-order", "print(list({('a', 1), ('b', 2), ('c', 3)}))", "print(sorted({('a', 1), ('b', 2), ('c', 3)}))"),
    "objects": ("set-order", OBJECTS + "for l in set(layers): print(numbers[id(l)])", "for l in dict.fromkeys(layers): print(numbers[id(l)])"),
    "objects with a number": (
        "set-order",
        "class Node:\n    def __init__(self, n):\n        self.label, self.number = 'x', n\n"
        "nodes = {Node(n) for n in range(40)}\nprint([node.number for node in nodes])",
        "print([node.number for node in sorted(nodes, key=lambda one: one.number)])",
    ),
    "objects of a comprehension": (
        "set-order",
        OBJECTS + "print([numbers[id(l)] for l in {l for l in layers}])",
        "print([numbers[id(l)] for l in dict.fromkeys(l for l in layers)])",
    ),
    "objects with a name": (
        "set-order",
        OBJECTS + "def go():\n    kept = set(layers)\n    for l in kept:\n        print(numbers[id(l)])\ngo()",
        "    kept = dict.fromkeys(layers)",
    ),
    "objects of an attribute": (
        "set-order",
        OBJECTS + "class Net:\n    def __init__(self):\n        self.kept = set(layers) - set(layers[:3])\n"
        "    def go(self):\n        print([numbers[id(l)] for l in self.kept])\nNet().go()",
        "        self.kept = dict.fromkeys(one for one in layers if one not in set(layers[:3]))",
    ),
    "pop": (
        "set-order",
        WORDS + "while words:\n    word = words.pop()  # any\n    print(word)",
        "    word = min(words)\n    words.remove(word)  # any",
    ),
    "several lines": (
        "set-order",
        WORDS + "print([\n    w\n    for w in\n    words if w  # all\n])",
        "    sorted(words) if w  # all",
    ),
    "listdir": ("listing", "import os\nprint(os.listdir('.'))", "print(sorted(os.listdir('.')))"),
    "list of a listing": ("listing", "from pathlib import Path\nprint(list(Path('.').iterdir()))", "print(sorted(Path('.').iterdir()))"),
    "glob": ("listing", "import glob\nfor f in glob.glob('*'): print(f)", "for f in sorted(glob.glob('*')): print(f)"),
    "scandir": (
        "listing",
        "import os\nprint([e.name for e in os.scandir('.')])",
        "print([e.name for e in sorted(os.scandir('.'), key=lambda entry: entry.name)])",
    ),
    "walk": (
        "listing",
        "import os\nfor root, dirs, files in os.walk('.'):\n    print(root, files)",
        "    dirs.sort()\n    files.sort()\n    print(root, files)",
    ),
    "hash": ("hash", "print(hash('a' + 'b') % 10)", "print(zlib.crc32(repr('a' + 'b').encode()) % 10)"),
    "hash as key": ("hash", "print(sorted('abcdefgh', key=hash))", "print(sorted('abcdefgh', key=repr))"),
    "clock as seed": ("clock", "import random, time\nrandom.seed(int(time.time()))\nprint(random.random())", "random.seed(0)"),
    "clock as a variable": ("clock", "import random, time\nseed = int(time.time() * 1000) % 2**32\nrandom.seed(seed)\nprint(random.random())", "seed = 0"),
    "clock beside what tells processes apart": (
        "clock",
        "import random, time\nrank = 3\nseed = int(time.time() * 1000) % 1000 + rank\nrandom.seed(seed)\nprint(random.random())",
        "seed = 0 + rank",
    ),
    "clock where no seed is given": (
        "clock", "import random, time\ngiven = None\nrandom.seed(given or time.time_ns())\nprint(random.random())", "random.seed(given or 0)"
    ),
    "clock in a text": ("clock", "import random, time\nrandom.seed(f'{time.time()}-x')\nprint(random.random())", "random.seed(0)"),
    "clock as a text": ("clock", "import random, time\nrandom.seed('x' + str(time.time()))\nprint(random.random())", "random.seed(0)"),
    "clock as a text with a name": (
        "clock", "import random, time\nname = 'x'\nrandom.seed(name + str(time.time()))\nprint(random.random())", "random.seed(name + '0')"
    ),
    "date as seed": (
        "clock",
        "import random\nfrom datetime import datetime\nrandom.seed(datetime.now().timestamp())\nprint(random.random())",
        "random.seed(0)",
    ),
    "pid as seed": ("process-id", "import os, random\nr = random.Random(os.getpid() + 1)\nprint(r.random())", "r = random.Random(0)"),
    "seed value": ("seed-value", "import os, random\nx = os.getpid()\nrandom.seed(x)  # why\nprint(random.random())", "random.seed(0)  # why"),
    "seed by keyword": ("seed-value", "import os, numpy as np\nr = np.random.default_rng(seed=os.getpid())\nprint(r.random())", "r = np.random.default_rng(seed=0)"),
    "default_rng": ("unseeded-generator", "import numpy as np\nr = np.random.default_rng()\nprint(r.random())", "r = np.random.default_rng(0)"),
    "seed of None": ("unseeded-generator", "import random\nrandom.seed(None)\nprint(random.random())", "random.seed(0)"),
    "seed without": ("unseeded-generator", "import random\nrandom.seed()\nprint(random.random())", "random.seed(0)"),
    "system random": ("entropy", "import random\nprint(random.SystemRandom().random())", "print(random.Random(0).random())"),
    "uuid as seed": ("entropy", "import random, uuid\nrandom.seed(uuid.uuid4().int)\nprint(random.random())", "random.seed(0)"),
    "as_completed": (
        "completion-order",
        SLOW + "from concurrent.futures import ThreadPoolExecutor, as_completed\nwith ThreadPoolExecutor(4) as p:\n"
        "    fs = [p.submit(slow, n) for n in range(9)]\n    for f in as_completed(fs): print(f.result())",
        "    for f in fs: print(f.result())",
    ),
    "as_completed of a set": (
        "completion-order",
        SLOW + "import concurrent.futures as c\nwith c.ThreadPoolExecutor(4) as p:\n"
        "    fs = {p.submit(slow, n) for n in range(9)}\n    print([f.result() for f in c.as_completed(fs)])",
        "    fs = [p.submit(slow, n) for n in range(9)]\n    print([f.result() for f in fs])",
    ),
    "imap_unordered": (
        "completion-order",
        SLOW + "from multiprocessing.pool import ThreadPool\nwith ThreadPool(4) as p:\n    print(list(p.imap_unordered(slow, range(9))))",
        "    print(list(p.imap(slow, range(9))))",
    ),
    "np.empty": ("uninitialized-array", "import numpy as np\nprint(np.empty((2, 3), dtype='float32'))", "print(np.zeros((2, 3), dtype='float32'))"),
    "empty_like": ("uninitialized-array", "from numpy import empty_like\nimport numpy as np\nprint(empty_like(np.ones(3)))", "print(zeros_like(np.ones(3)))"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_the_smallest_and_makes_runs_equal(tmp_path: Path, name: str) -> None:
    source, program, expected = CHANGES[name]
    stage = Stage(tmp_path, program + "\n")
    fix = fix_of(stage, source)

    assert fix is not None
    assert fix.code == expected
    text = Path(stage.main).read_text()
    in_memory = [stage.probed(request=ProbeRequest(changes=(fix,)), PYTHONHASHSEED=str(seed)) for seed in (1, 2)]
    assert Path(stage.main).read_text() == text
    _apply(stage, fix)
    written = stage.plain(PYTHONHASHSEED="3")
    assert written.status == 0, written.stderr
    assert [run.stdout for run in in_memory] == [written.stdout] * 2, in_memory


def _apply(stage: Stage, fix: CodeChange) -> None:
    lines = Path(stage.main).read_text().split("\n")
    for change in reversed(fix.changes):
        assert "\n".join(lines[change.line - 1 : change.end_line]) == change.before
        lines[change.line - 1 : change.end_line] = change.after.split("\n")
    Path(stage.main).write_text("\n".join([*fix.imports, *lines]))


TORCH = {
    "torch.seed": ("unseeded-generator", "import torch\ntorch.seed()", "torch.manual_seed(0)"),
    "value of torch.seed": (
        "unseeded-generator",
        "import torch\nprint(torch.seed())",
        "print(torch.manual_seed(0).initial_seed())",
    ),
    "Generator.seed": ("unseeded-generator", "import torch\ng = torch.Generator()\ng.seed()", "g.manual_seed(0)"),
    "manual_seed": ("seed-value", "import time, torch\ntorch.manual_seed(int(time.time()))", "torch.manual_seed(0)"),
    "loader": (
        "loader-order",
        "from torch.utils.data import DataLoader\nl = DataLoader([1],\n    in_order=False, num_workers=0)",
        "    in_order=True, num_workers=0)",
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_change_of_a_torch_program(tmp_path: Path, name: str) -> None:
    source, program, expected = TORCH[name]
    fix = fix_of(Stage(tmp_path, program + "\n"), source)

    assert fix is not None and fix.code == expected and not fix.imports


@pytest.mark.parametrize(
    ("source", "program"),
    [
        ("clock", "import time\nend = time.time() + 0.01\nwhile time.time() < end:\n    pass\n"),
        ("set-order", "words = {'a', 'b'}\nwords.pop()\n"),
        ("set-order", OBJECTS + "kept = set(layers)\nkept.add(1)\nfor l in kept: pass\n"),
        ("id", "print(id(object()))\n"),
        ("queue-order", "import queue\nq = queue.Queue()\nq.put(1)\nq.get()\n"),
        ("python-random", "import random\nrandom.random()\n"),
        ("listing", "import os\nwith os.scandir('.') as found:\n    list(found)\n"),
    ],
)
def test_no_change_is_proposed_if_a_small_one_is_not_enough(tmp_path: Path, source: str, program: str) -> None:
    assert fix_of(Stage(tmp_path, program), source) is None


def test_no_change_is_proposed_for_a_file_that_was_modified(tmp_path: Path) -> None:
    site = SourceSite(str(tmp_path / "gone.py"), 1, 0, 1, 5, "f", "")
    source = Source("listing", site, "main", None, "MainThread", (1, 1), True, 0, (0, 0), (None, None))

    assert code_fix(source) is None
    (tmp_path / "gone.py").write_text("x = 1\n")
    assert code_fix(source) is None
    (tmp_path / "gone.py").write_text("x = (\n")
    assert code_fix(source) is None
