"""A change that makes a seed constant keeps generators as they are, and does not replace seeds that are chosen elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from determinism.diagnose.code_changes import chosen_by, code_fix, possible_uses, source_of
from determinism.diagnose.experiments import Intervention
from determinism.diagnose.fixes import fixes_for
from determinism.diagnose.hypotheses import Hypothesis
from determinism.diagnose.parsed_module import Module, last_part
from determinism.run_spec import FixedSource


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        (
            "g = keras.random.SeedGenerator(int.from_bytes(os.urandom(3), 'little'))",
            "g = keras.random.SeedGenerator(0)",
        ),
        ("g = keras.random.SeedGenerator(None if x else os.urandom(1)[0])", "g = keras.random.SeedGenerator(0)"),
        ("g = keras.random.SeedGenerator()", "g = keras.random.SeedGenerator(0)"),
        (
            "generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(3), 'little'))",
            "generator = torch.Generator().manual_seed(0)",
        ),
        ("generator.seed(os.urandom(3)[0])", "generator.seed(0)"),
        ("seed = library.new_seed()", "seed = 0"),
    ],
)
def test_a_line_that_reads_random_bytes_gets_a_constant_seed(line: str, fixed: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"import os, keras, torch, library\nx = None\n{line}\n")
    uses = possible_uses(FixedSource(str(program), 3, "entropy"))
    change = next(found for use in uses if (found := code_fix(use)) is not None)
    assert change.code == fixed


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("def new_seed(given):\n    return given or int(time.time())\n", "    return given or 0"),
        ("parser.add_argument('--seed', type=int, default=int(time.time()))\n", "parser.add_argument('--seed', type=int, default=0)"),
        ("options.seed = (int(time.time()) * 31) % 2**32\n", "options.seed = 0"),
        ("settings['run']['seed'] = int(time.time())\n", "settings['run']['seed'] = 0"),
        ("settings = {'name': 'a', 'seed': int(time.time())}\n", "settings = {'name': 'a', 'seed': 0}"),
        ("os.environ.setdefault('SEED', str(int(time.time())))\n", "os.environ.setdefault('SEED', '0')"),
        ("value = settings.get('seed', time.time())\n", "value = settings.get('seed', 0)"),
    ],
)  # fmt: skip
def test_a_seed_made_from_the_clock_becomes_constant_at_its_origin(text: str, fixed: str, tmp_path: Path) -> None:
    assert _changed(text, "time.time()", "clock", tmp_path) == fixed


@pytest.mark.parametrize(
    "text",
    [
        "def started():\n    return int(time.time())\n",
        "parser.add_argument('--run-name', default=int(time.time()))\n",
        "settings['started'] = int(time.time())\n",
        "settings = {'seed': 1, 'started': time.time()}\n",
    ],
)
def test_a_time_that_is_not_used_as_a_seed_is_left_alone(text: str, tmp_path: Path) -> None:
    assert _changed(text, "time.time()", "clock", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "chooser"),
    [
        ("def seed_all(seed):\n    torch.manual_seed(seed)\n", "the parameter seed of seed_all()"),
        ("def seed_all(given):\n    seed = int(given) + 1\n    torch.manual_seed(seed)\n", "the parameter given of seed_all()"),
        ("torch.manual_seed(options.seed)\n", "options.seed"),
        ("torch.manual_seed(int(os.environ['SEED']))\n", "the environment variable SEED"),
        ("seed = int(os.environ.get('SEED', '0'))\ntorch.manual_seed(seed)\n", "the environment variable SEED"),
        ("torch.manual_seed(int(os.getenv('SEED', 0)))\n", "the environment variable SEED"),
    ],
)  # fmt: skip
def test_a_seed_that_is_chosen_elsewhere_is_not_replaced(text: str, chooser: str, tmp_path: Path) -> None:
    assert _changed(text, "torch.manual_seed", "seed-value", tmp_path) is None
    module = Module("train.py", _HEAD + text)
    [call] = [one for one in module.nodes if isinstance(one, ast.Call) and last_part(one.func) == "manual_seed"]
    assert chosen_by(module, call.args[0]) == chooser


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("streams = SeedSequence(seed)\n", "streams = SeedSequence(0 if seed is None else seed)"),
        ("rng = default_rng(options.seed)\n", "rng = default_rng(0 if options.seed is None else options.seed)"),
        ("rng = default_rng(None)\n", "rng = default_rng(0)"),
        ("g = tf.random.Generator.from_non_deterministic_state()\n", "g = tf.random.Generator.from_seed(0)"),
        (
            'g = tf.random.Generator.from_non_deterministic_state(alg="philox")\n',
            'g = tf.random.Generator.from_seed(0, alg="philox")',
        ),
        ("rng = default_rng(seed=seed)\n", "rng = default_rng(seed=0 if seed is None else seed)"),
    ],
)
def test_a_generator_seeded_with_none_still_accepts_a_seed(text: str, fixed: str, tmp_path: Path) -> None:
    call = text.partition("= ")[2].strip()
    assert _changed(text, call, "unseeded-generator", tmp_path) == fixed


@pytest.mark.parametrize(
    "text",
    [
        "torch.manual_seed(library.fresh())\n",
        "seed = library.fresh()\ntorch.manual_seed(seed)\n",
        "def run(name):\n    torch.manual_seed(library.fresh(name))\n",
    ],
)
def test_a_seed_that_the_program_makes_itself_becomes_a_constant(text: str, tmp_path: Path) -> None:
    changed = _changed(text, "torch.manual_seed", "seed-value", tmp_path)
    assert changed is not None
    assert changed.strip() == "torch.manual_seed(0)"


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        (
            "def seed_all(seed, rank):\n    value = seed * 1000 + rank + int(time.time())\n    torch.manual_seed(value)\n",
            "    value = seed * 1000 + rank + 0",
        ),
        (
            "def fresh():\n    return time.time_ns() % 99\ndef begin(worker):\n    torch.manual_seed(fresh() + worker & 0xFF)\n",
            "    torch.manual_seed(0 + worker & 0xFF)",
        ),
        ("torch.manual_seed(time.time_ns() % 2**32)\n", "torch.manual_seed(0)"),
        ("now = time.time_ns() + os.getpid()\ntorch.manual_seed(now)\n", "now = 0"),
    ],
)
def test_only_the_varying_part_of_a_mixed_seed_becomes_constant(text: str, fixed: str, tmp_path: Path) -> None:
    assert _changed(text, "torch.manual_seed", "seed-value", tmp_path) == fixed


@pytest.mark.parametrize(
    ("call", "fixed"),
    [
        ("nnx.Rngs(time.time_ns())", "model = Net(nnx.Rngs(0))"),
        ("nnx.Rngs(params=0, dropout=int(time.time()) % 2**31)", "model = Net(nnx.Rngs(params=0, dropout=0))"),
        ("nnx.Rngs(7, dropout=time.time_ns())", "model = Net(nnx.Rngs(7, dropout=0))"),
        ("nnx.Rngs(options.seed, dropout=time.time_ns())", "model = Net(nnx.Rngs(options.seed, dropout=0))"),
        ("nnx.Rngs(time.time_ns(), dropout=os.getpid())", "model = Net(nnx.Rngs(0, dropout=1))"),
        ("nnx.Rngs(3, dropout=options.seed)", None),
        ("nnx.Rngs(params=3, dropout=4)", None),
        ("nnx.Rngs(**seeds)", None),
    ],
)
def test_only_the_varying_streams_of_keys_get_constant_seeds(call: str, fixed: str | None, tmp_path: Path) -> None:
    assert _changed(f"model = Net({call})\n", "nnx.Rngs", "seed-value", tmp_path) == fixed


TRAINER = """
class Trainer:
    def __init__(self, seed=None):
        self.run = uuid.uuid4().hex
        self.seed = {made}
        self.seed_all()

    def seed_all(self):
        for one in (torch.manual_seed, library.seed):
            one(self.seed)
"""


@pytest.mark.parametrize(
    ("made", "fixed"),
    [
        ("seed if seed is not None else int(self.run[:8], 16)", "        self.seed = seed if seed is not None else 0"),
        ("seed or int(self.run[:8], 16)", "        self.seed = seed or 0"),
        ("int(os.getenv('SEED', '0'))", None),
        ("seed", None),
    ],
)
def test_a_seed_kept_in_an_object_becomes_constant_at_its_origin(made: str, fixed: str | None, tmp_path: Path) -> None:
    assert _changed("import uuid\n" + TRAINER.format(made=made), "one(self.seed)", "seed-value", tmp_path) == fixed


_HEAD = "import os, time, torch, library\n"


def _changed(text: str, call: str, source: str, folder: Path) -> str | None:
    """The line with the source removed; None if no change is offered."""
    program = folder / "train.py"
    program.write_text(_HEAD + text)
    module = Module(str(program), program.read_text())
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    [use] = [one for one in calls if module.text_of(one).startswith(call)]
    change = code_fix(source_of(use, FixedSource(str(program), use.lineno, source), ""))
    return None if change is None else change.code


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ("def noise(size):\n    return np.random.default_rng().standard_normal(size)\n", True),
        ("def main():\n    rng = np.random.default_rng()\n", False),
        ("if True:\n    rng = np.random.default_rng()\n", False),
    ],
)
def test_a_constant_seed_in_a_function_comes_with_a_warning_about_repeats(
    text: str, is_said: bool, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(text)
    held = FixedSource(str(program), 2, "unseeded-generator")
    [fix] = fixes_for([Hypothesis("generator-unseeded", Intervention(sources=frozenset({held})), ())], None, None, None)
    assert fix.title.startswith("Give the generator a seed, at train.py:2")
    assert ("If the line runs more than once" in fix.title) == is_said


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ("y = torch.from_numpy(np.random.default_rng().random(5)).float()", "y = torch.from_numpy(np.random.default_rng(0).random(5)).float()"),
        ("first = str(random.Random().random()).strip()", "first = str(random.Random(0).random()).strip()"),
    ],
)  # fmt: skip
def test_the_call_that_makes_the_generator_gets_the_seed(line: str, fixed: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"import random\n{line}\n")
    uses = possible_uses(FixedSource(str(program), 2, "unseeded-generator"))
    change = next(found for use in uses if (found := code_fix(use)) is not None)
    assert change.code == fixed
