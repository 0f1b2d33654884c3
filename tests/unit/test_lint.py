"""Test what lint reports, what it does not report, and its command line."""

from __future__ import annotations

import json
from email.message import Message
from pathlib import Path

import pytest
from click.testing import CliRunner

from determinism.__main__ import command
from determinism.diagnose.checkpoints import PARTS, fix
from determinism.diagnose.experiments import causes
from determinism.knowledge.settings import effects_of
from determinism.lint.findings import explained, explanation, rules
from determinism.lint.run import LintRequest, Source, lint, lint_text
from tests.architecture import lint_rules_page

PROGRAMS = Path(__file__).parents[1] / "e2e" / "programs" / "causes"


def rules_in(text: str, device: str | None = None) -> list[str]:
    return [finding.rule for finding in lint_text(Source("program.py", text), device)]


@pytest.mark.parametrize("name", list(rules()))
def test_a_rule_fires_on_its_bad_program_only(name: str) -> None:
    rule = rules()[name]
    assert name in rules_in(rule.bad, rule.device)
    assert rules_in(rule.good, rule.device) == []


def test_lint_and_check_give_a_cause_the_same_title() -> None:
    shared = rules().keys() & causes().keys()
    assert len(shared) > 15
    assert all(rules()[name].title == causes()[name].title for name in shared)


def test_the_pages_of_rules_and_causes_are_current() -> None:
    assert lint_rules_page.PAGE.read_text(encoding="utf-8") == lint_rules_page.written(), "make docs"
    stored = {page.name: page.read_text(encoding="utf-8") for page in lint_rules_page.FOLDER.glob("*.md")}
    assert stored == lint_rules_page.pages(), "make docs"


def test_every_rule_and_cause_has_a_page_and_causes_are_linked() -> None:
    listed = (lint_rules_page.DOCS / "causes.md").read_text(encoding="utf-8")
    assert set(explained()) == rules().keys() | causes().keys()
    assert all(f"| [`{name}`](cause/{name}.md) |" in listed for name in causes())
    assert all(f"```python\n{rule.bad.strip()}\n```" in explanation(name) for name, rule in rules().items())


def test_explain_prints_the_page_of_a_rule() -> None:
    status, output = run("--explain", "hash-order")
    assert status == 0 and output == explanation("hash-order") and causes()["hash-order"].why in output
    assert run("--explain", "queue-order")[0] == 0, "a cause that only check sees"
    status, output = run("--explain", "hash-orders")
    assert status == 2 and "Did you mean hash-order?" in output
    assert run()[0] == 2


def test_settings_and_checkpoint_parts_are_described_in_one_place() -> None:
    effects = {**effects_of("torch"), **effects_of("tensorflow")}
    named = [name for rule in rules().values() for name in rule.settings]
    assert len(named) > 3 and set(named) <= effects.keys()
    (found,) = lint_text(Source("p.py", "import torch\ntorch.backends.cudnn.benchmark = True\n"))
    assert found.message == effects["torch.backends.cudnn.benchmark"]
    assert rules_in("import torch\ntorch.set_float32_matmul_precision('high')\n") == ["allow-tf32"]
    assert rules_in("import torch\ntorch.set_float32_matmul_precision('highest')\n") == []
    (lacks,) = lint_text(Source("p.py", rules()["checkpoint-incomplete"].bad))
    titles = f"lacks {PARTS['optimizer'].title} and {PARTS['rng-torch'].title}, so"
    assert titles in lacks.message and fix("optimizer") in lacks.message


SAVES_WITHIN_AN_EPOCH = """
import torch


def train(model, loader, path):
    optimizer = torch.optim.Adam(model.parameters())
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for epoch in range(3):
        for images in loader:
            model(images).backward()
            optimizer.step()
            state = {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "rng": torch.get_rng_state(),
                EXTRA
            }
            torch.save(state, path)
"""


def test_a_checkpoint_between_batches_needs_the_position_of_the_loader() -> None:
    (found,) = lint_text(Source("p.py", SAVES_WITHIN_AN_EPOCH.replace("EXTRA", "")))
    assert found.rule == "checkpoint-incomplete" and "lacks the position in the epoch" in found.message
    assert rules_in(SAVES_WITHIN_AN_EPOCH.replace("EXTRA", '"loader": loader.state_dict(),')) == []


RESUMES = """
import torch

model = torch.nn.Linear(1, 1)
opt = torch.optim.Adam(model.parameters())
sched = torch.optim.lr_scheduler.StepLR(opt, 1)
saved = torch.load("last.pt")
model.load_state_dict(saved["model"])
for epoch in range(3):
    model(torch.ones(1)).backward()
    torch.save(SAVED, "last.pt")
"""


def lacking(saved: str) -> str:
    found = lint_text(Source("p.py", RESUMES.replace("SAVED", saved)))
    return "; ".join(one.message.partition(", so")[0] for one in found if one.rule == "checkpoint-incomplete")


def test_checkpoint_contents_are_derived_from_the_saved_variables() -> None:
    whole = '"m": model.state_dict(), "o": opt.state_dict(), "s": sched.state_dict(), "epoch": epoch, "r": torch.get_rng_state()'
    assert lacking(f"{{{whole}}}") == ""
    assert "the state of the optimizer" in lacking(f"{{{whole.replace('opt.', 'other.')}}}")
    assert "the state of its scheduler" in lacking(
        "dict(m=model.state_dict(), o=opt.state_dict(), epoch=epoch, r=torch.get_rng_state())"
    )


def test_weights_that_the_program_reloads_are_a_checkpoint() -> None:
    assert "a number that the program keeps itself" in lacking('{"model": model.state_dict()}')
    exported = RESUMES.replace('SAVED, "last.pt"', '{"model": model.state_dict()}, "weights.pt"')
    assert "checkpoint-incomplete" not in rules_in(exported)


@pytest.mark.parametrize(
    ("statement", "is_named"),
    [
        ("x[rows.long()] = y", True), ("at = rows.long().clamp(0, 3)\n    x[at * 4 + 1] = y", True), ("x[rows.long()] = 0.0", False),
        ("x[rows > 3] = y", False), ("x[order] = y", False), ("x[1:] = y", False),
    ],
)  # fmt: skip
def test_writes_at_computed_indices_may_collide(statement: str, is_named: bool) -> None:
    text = f"import torch\n\ndef f(x, y, rows, order):\n    {statement}\n"
    assert rules_in(text, "cpu") == ["nondeterministic-op"] * is_named


@pytest.mark.parametrize(
    ("call", "is_named"),
    [
        ("interpolate(x, scale_factor=2, mode='bilinear')", True),
        ("interpolate(x, scale_factor=2, mode='nearest')", False),
        ("interpolate(x, scale_factor=2)", False),
        ("interpolate(x, scale_factor=2, mode=mode)", True),
        ("pad(x, (1, 1), mode='reflect')", True),
        ("pad(x, (1, 1))", False),
        ("cross_entropy(x, y)", False),
    ],
)
def test_an_op_is_reported_if_its_arguments_allow_variation(call: str, is_named: bool) -> None:
    text = f"import torch.nn.functional as F\n\ndef f(x, y, mode):\n    return F.{call}\n"
    assert rules_in(text, "cuda") == ["nondeterministic-op"] * is_named


def test_details_missing_from_the_call_are_stated_as_a_condition() -> None:
    text = "import torch\nfrom torch import nn\nnet = nn.Conv2d(3, 9, 1)\n\ndef f(x, y):\n    return nn.functional.cross_entropy(net(x), y)\n"
    (found,) = [one for one in lint_text(Source("p.py", text), "cuda") if "cross_entropy" in one.message]
    assert "on cuda if this holds: class indices as targets, input of four dimensions" in found.message
    with_classes = lint_text(Source("p.py", f"{text}head = nn.Linear(9, 9)\n"), "cuda")
    assert not any("cross_entropy" in one.message for one in with_classes)


def test_ops_are_looked_up_for_the_given_version() -> None:
    text = Source("p.py", "import torch\ntorch.cumsum(x, 0)\n")
    assert [one.rule for one in lint_text(text, "cuda", (("torch", "2.6"),))] == ["nondeterministic-op"]
    early = {version: len(lint_text(text, "cuda", (("torch", version),))) for version in ("1.4", "2.6")}
    assert early == {"1.4": 0, "2.6": 1}
    assert rules_in("import torch\ntorch.cumsum(x, 0)\n") == []


def test_a_jax_scatter_is_reported_on_a_gpu() -> None:
    text = "import jax\n\ndef f(x, i, y):\n    return x.at[i].add(y)\n"
    (found,) = lint_text(Source("p.py", text), "gpu")
    assert "x.at[i].add, where an index occurs twice, varies from run to run on gpu" in found.message
    assert rules_in(text.replace(".add(", ".set("), "gpu") == rules_in(text, "cpu") == []


def test_the_version_option_is_validated(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("x = 1\n")
    for words in (
        ["--version", "torch=2.6"],
        ["--device", "cuda", "--version", "torch"],
        ["--device", "cuda", "--version", "torsh=2.6"],
    ):
        assert run(str(file), *words)[0] == 2
    assert run(str(file), "--device", "cuda", "--version", "torch=2.6")[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        "import jax\nkey = jax.random.key(0)\nfor step in range(3):\n    key, sub = jax.random.split(key)\n    jax.random.normal(sub)\n",
        "import jax\n\ndef draw(key, how):\n    if how:\n        return jax.random.normal(key)\n    return jax.random.uniform(key)\n",
        "import jax\n\ndef draw(key, how):\n    if how:\n        x = jax.random.normal(key)\n    else:\n        x = jax.random.uniform(key)\n    return x\n",
        "import jax\nkey = jax.random.key(0)\nrows = [jax.random.normal(jax.random.fold_in(key, n)) for n in range(3)]\n",
        "import jax\nkeys = jax.random.split(jax.random.key(0), 3)\nrows = [jax.random.normal(key) for key in keys]\n",
        "import jax\nkeys = jax.random.split(jax.random.key(0), 2)\nx, y = jax.random.normal(keys[0]), jax.random.normal(keys[1])\n",
        "import jax\nkey = jax.random.key(0)\nx = jax.random.normal(key)\nkey = jax.random.key(1)\ny = jax.random.normal(key)\n",
    ],
)
def test_keys_that_are_used_once_are_not_reported(text: str) -> None:
    assert rules_in(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import jax\nkey = jax.random.key(0)\nfor step in range(3):\n    jax.random.normal(key)\n",
        "from jax import random\n\ndef draw(key):\n    sub, other = random.split(key)\n    return random.normal(key) + random.normal(sub)\n",
        "import jax.random as jr\nkey = jr.key(0)\nrows = [jr.normal(key) for _ in range(3)]\n",
        "import jax\n\ndef draw(keys):\n    return jax.random.normal(keys[0]) + jax.random.uniform(keys[0])\n",
        "import jax\n\ndef draw(key, how):\n    if how:\n        print(jax.random.normal(key))\n    return jax.random.uniform(key)\n",
    ],
)
def test_a_reused_key_is_reported(text: str) -> None:
    assert rules_in(text) == ["key-reused"]


DATA_SET = """
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, images):
        self.images, self.draws = images, None
        self.draws = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.images[index] + self.draws.normal()


def loader(images):
    return DataLoader(Noisy(images), num_workers=2)
"""


ITEMS = """
import random
import torch
from torch.utils.data import DataLoader, Dataset

{seeding}


class Noisy(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(self.changed(index))

    def changed(self, index):
        return index + random.random()


class Flip:
    def __call__(self, item):
        return item if random.random() < 0.5 else -item


for item in DataLoader(Noisy(Flip()), num_workers={workers}{arguments}):
    model(item).backward()
"""


@pytest.mark.parametrize("arguments", ["", ", shuffle=True"])
def test_what_workers_draw_is_seeded_by_the_generator_of_pytorch(arguments: str) -> None:
    def found(seeding: str, workers: str, more: str = "") -> list[str]:
        return rules_in(ITEMS.format(seeding=seeding, workers=workers, arguments=arguments) + more)

    assert found("torch.manual_seed(0)", "2") == []
    assert found("", "2") == ["seed-missing-torch"]
    assert found("random.seed(0)", "2") == ["seed-missing-torch"]
    assert "seed-missing-python" in found("torch.manual_seed(0)", "0")
    assert found("torch.manual_seed(0)", "count") == ["seed-missing-python"], "it may be 0"
    assert found("torch.manual_seed(0)", "2", "test = DataLoader(Noisy(Flip()))\n") == ["seed-missing-python"]
    assert found("torch.manual_seed(0)", "2", "noise = random.random()\n") == ["seed-missing-python"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ignite.utils", "manual_seed"),
        ("monai.utils", "set_determinism"),
        ("timm.utils", "random_seed"),
        ("transformers", "enable_full_determinism"),
    ],
)
def test_functions_of_libraries_that_seed_all_generators_are_known(module: str, name: str) -> None:
    text = "import numpy, random, torch\n{0}\nx = torch.rand(3) + random.random() + numpy.random.rand()\nmodel(x).backward()\n"
    assert rules_in(text.format(f"from {module} import {name}\n{name}(0)")) == []
    assert len(rules_in(text.format(f"from {module} import other\nother(0)"))) == 3


def test_workers_with_copies_of_one_generator_are_reported() -> None:
    assert rules_in(DATA_SET) == ["workers-alike"]
    assert rules_in(DATA_SET.replace("num_workers=2", "num_workers=0")) == []
    assert rules_in(DATA_SET.replace("num_workers=2", "num_workers=2, worker_init_fn=begin")) == []
    assert rules_in(DATA_SET.replace("+ self.draws.normal()", "")) == []


@pytest.mark.parametrize(
    ("seed", "is_alike"),
    [
        ("0", True),
        ("SEED", True),
        ("SEED + worker", False),
        ("torch.initial_seed() % 2**32", False),
        ("int(worker)", False),
    ],
)
def test_the_seed_of_a_worker_must_depend_on_the_worker(seed: str, is_alike: bool) -> None:
    text = (
        f"import random, torch\nfrom torch.utils.data import DataLoader\nSEED = 3\n\ndef begin(worker):\n    random.seed({seed})\n\n"
        "def loader(data):\n    return DataLoader(data, worker_init_fn=begin)\n"
    )
    assert rules_in(text) == ["workers-alike"] * is_alike


STUDY = "import optuna\nfrom optuna.samplers import TPESampler\nstudy = {}\nstudy.optimize(objective, n_trials=3)\n"
SPACE = "import gymnasium as gym\ne = gym.make('a')\ns, _ = e.reset(seed=3)\nprint(s)\n"


@pytest.mark.parametrize(
    ("text", "rules_found"),
    [
        ("import tensorflow as tf\ng = tf.random.Generator.from_non_deterministic_state()\n", ["generator-unseeded"]),
        ("import tensorflow as tf\ng = tf.random.Generator.from_seed(1)\n", []),
        (STUDY.format("optuna.create_study()"), ["generator-unseeded"]),
        (STUDY.format("optuna.create_study(sampler=None, direction='minimize')"), ["generator-unseeded"]),
        (STUDY.format("optuna.create_study(sampler=TPESampler())"), ["generator-unseeded"]),
        (STUDY.format("optuna.create_study(sampler=TPESampler(seed=None))"), ["generator-unseeded"]),
        (STUDY.format("optuna.create_study(sampler=TPESampler(seed=1))"), []),
        (STUDY.format("optuna.create_study(sampler=optuna.samplers.RandomSampler(1))"), []),
        (STUDY.format("optuna.create_study(**options)"), []),
        (STUDY.format("optuna.create_study(sampler=sampler)"), []),
        (STUDY.format("optuna.create_study()\nstudy.sampler = TPESampler(seed=1)"), []),
        (STUDY.format("optuna.create_study()").replace("optimize", "enqueue_trial"), []),
        ("import tensorflow as tf\no = tf.data.Options()\no.deterministic = False\n", ["pipeline-order"]),
        ("import tensorflow as tf\no = tf.data.Options()\no.deterministic = True\n", []),
        ("import tensorflow as tf\n\ndef f(d, g):\n    return d.map(lambda x: x + tf.random.normal(()), num_parallel_calls=4)\n", ["pipeline-race"]),
        ("import tensorflow as tf\nflip = tf.keras.Sequential([tf.keras.layers.RandomFlip(seed=1)])\n\ndef f(d):\n    return d.map(lambda x: flip(x), num_parallel_calls=4)\n", ["pipeline-race"]),
        ("import tensorflow as tf\nfrom keras import layers\nflip = layers.RandomFlip(seed=1)\n\ndef f(d):\n    return d.map(flip, num_parallel_calls=4)\n", ["pipeline-race"]),
        ("import tensorflow as tf\nfrom keras import layers\nflip = layers.RandomFlip(seed=1)\n\ndef f(d):\n    return d.map(flip)\n", []),
        ("import tensorflow as tf\nfrom keras import layers\nscale = layers.Rescaling(0.5)\n\ndef f(d):\n    return d.map(lambda x: scale(x), num_parallel_calls=4)\n", []),
        ("import tensorflow as tf\n\ndef f(d, g):\n    return d.map(lambda x: x + tf.random.normal(()))\n", []),
        ("import tensorflow as tf\n\ndef f(d, g):\n    return d.map(lambda x: x + 1, num_parallel_calls=4)\n", []),
        ("import gymnasium as gym\ne = gym.make('a')\ns = e.reset()\nprint(s)\n", ["generator-unseeded"]),
        ("import gymnasium as gym\ne = gym.make('a')\ns = e.reset(seed=3)\ne.reset()\nprint(s)\n", []),
        ("from gym import make\ne = make('a')\ns = e.reset()\nprint(s)\n", ["generator-unseeded"]),
        ("import gym\n\ndef run(new):\n    e, t = new(), new()\n    print(e.reset())\n\nrun(lambda: gym.make('a'))\n", ["generator-unseeded"]),
        ("import gym\n\ndef run(new):\n    e, t = new(), new()\n    print(e.reset())\n\nrun(lambda: Own('a'))\n", []),
        ("import gym\ne = gym.make('a')\ne.seed(3)\ns = e.reset()\nprint(s)\n", []),
        ("import gym\nimport own.environments as own\ne = gym.vector.VectorEnv([lambda: own.make_env('a', SEED + 1)])\ns = e.reset()\nprint(s)\n", []),
        ("import gym\nimport own.environments as own\ne = gym.vector.VectorEnv([lambda: own.make_env('a')])\ns = e.reset()\nprint(s)\n", ["generator-unseeded"]),
        ("import gym\n\ndef make_env(seed):\n    return gym.make('a')\n\ne = gym.vector.VectorEnv([make_env(seed=1)])\ns = e.reset()\nprint(s)\n", ["generator-unseeded"]),
        ("import gym\n\ndef f():\n    e = gym.make('a')\n    return e.reset()\n", []),
        (f"{SPACE}a = e.action_space.sample()\ne.step(a)\n", ["generator-unseeded"]),
        (f"{SPACE}a = e.single_action_space.sample()\ne.step(a)\n", ["generator-unseeded"]),
        (f"{SPACE}e.action_space.seed(3)\na = e.action_space.sample()\ne.step(a)\n", []),
        (f"{SPACE}a = policy.action_space.sample()\ne.step(a)\n", []),
        (f"import stable_baselines3\n{SPACE}a = e.action_space.sample()\ne.step(a)\n", []),
        ("from torch.distributed import recv\n\ndef f(x):\n    recv(x)\n", ["arrival-order"]),
        ("from torch.distributed import recv\n\ndef f(x):\n    recv(x, 1)\n", []),
    ],
)  # fmt: skip
def test_results_that_depend_on_timing_or_a_framework_are_reported(text: str, rules_found: list[str]) -> None:
    assert rules_in(text) == rules_found


DRAWS = [
    ("import torch\nx = torch.zeros(3).normal_()\n", "torch"),
    ("import torch\nx = torch.zeros(3)\ntorch.nn.init.kaiming_normal_(x)\n", "torch"),
    ("import keras\nx = keras.random.normal((2, 2))\n", "tensorflow"),
    ("import tensorflow as tf\nx = tf.data.Dataset.range(9).shuffle(9)\n", "tensorflow"),
    ("from sklearn.model_selection import train_test_split\nx = train_test_split(rows)\n", "numpy"),
    ("from sklearn.model_selection import RandomizedSearchCV\nx = RandomizedSearchCV(net, {})\n", "numpy"),
    ("from sklearn.model_selection import StratifiedKFold\nx = StratifiedKFold(shuffle=True)\n", "numpy"),
    ("import pandas\nx = pandas.read_csv('rows').sample(frac=0.5)\n", "numpy"),
]
SEEDINGS = {
    "torch": "torch.manual_seed(0)",
    "tensorflow": "keras.utils.set_random_seed(0)",
    "numpy": "numpy.random.seed(0)",
}


@pytest.mark.parametrize(("text", "library"), DRAWS)
@pytest.mark.parametrize(
    "end", ["model.fit(x)", "history = model.fit(x)", "torch.save(x, 'x')", "with open('x') as file:\n    file.save(x)"]
)
def test_draws_are_recognized_in_each_library_however_the_program_ends(text: str, library: str, end: str) -> None:
    assert rules_in(f"{text}{end}\n") == [f"seed-missing-{library}"]
    imports, _, rest = text.partition("\n")
    assert rules_in(f"{imports}\nimport numpy, keras\n{SEEDINGS[library]}\n{rest}{end}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "import keras\nx = keras.random.normal((2, 2), seed=3)\nmodel.fit(x)\n",
        "import tensorflow as tf\nx = tf.data.Dataset.range(9).shuffle(9, seed=3)\nmodel.fit(x)\n",
        "import tensorflow as tf\nrng.shuffle(rows)\nmodel.fit(rows)\n",
        "from sklearn.model_selection import train_test_split as split\nx = split(rows, random_state=3)\nx.fit(x)\n",
        "from sklearn.model_selection import train_test_split\nx = train_test_split(rows, shuffle=False)\nmodel.fit(x)\n",
        "from sklearn.model_selection import StratifiedKFold\nx = StratifiedKFold(5)\nmodel.fit(x)\n",
        "import pandas\nx = pandas.read_csv('rows').sample(frac=0.5, random_state=3)\nmodel.fit(x)\n",
        "import torch\nLAYER = torch.nn.Linear(1, 1)\nTABLE = make_table()\n",
        "import torch\n\ndef register(layer):\n    return layer\n\nLAYER = register(torch.nn.Linear(1, 1))\n",
    ],
)
def test_seeded_draws_and_library_modules_are_not_a_missing_seed(text: str) -> None:
    assert rules_in(text) == []


@pytest.mark.parametrize(
    ("seeds", "found"),
    [("torch.manual_seed", []), ("numpy.random.seed", ["seed-missing-torch"]), ("print", ["seed-missing-torch"])],
)
def test_a_module_next_to_the_program_may_seed_it(seeds: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    helper = f"import numpy, torch\n\ndef start(seed):\n    for one in ({seeds},):\n        one(seed)\n"
    (tmp_path / "training" / "beginning.py").write_text(helper)
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nfrom training.beginning import start\n\nstart(3)\nlayer = torch.nn.Linear(2, 2)\n"
        "layer(torch.ones(1, 2)).sum().backward()\n"
    )
    assert [one.rule for one in lint_text(Source(str(program), program.read_text()))] == found


def test_seeding_the_gpus_does_not_seed_the_cpu_generator() -> None:
    text = "import torch\ntorch.cuda.manual_seed_all(0)\nx = torch.randn(3DEVICE)\nprint(x)\nmodel.fit(x)\n"
    assert rules_in(text.replace("DEVICE", "")) == ["seed-missing-torch"]
    assert rules_in(text.replace("DEVICE", ", device='cuda'")) == []


def test_programs_that_only_look_nondeterministic_have_no_findings() -> None:
    found = lint(LintRequest((str(PROGRAMS / "controls"),)))
    assert found.files > 10
    assert found.findings == ()


def test_only_the_causes_of_differences_are_found_in_the_examples() -> None:
    examples = PROGRAMS.parents[3] / "examples"
    found = {
        (Path(one.file).relative_to(examples).as_posix(), one.rule)
        for one in lint(LintRequest((str(examples),))).findings
    }
    assert found == {
        ("first_steps/augmentation.py", "seed-missing-numpy"),
        ("first_steps/cnn.py", "generator-unseeded"),
        ("first_steps/transformer.py", "seed-missing-torch"),
        ("first_steps/vocabulary.py", "hash-order"),
    }


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        ("ordering/vocabulary", "hash-order"), ("ordering/task_losses", "hash-order"), ("ordering/class_folders", "listing-order"),
        ("ordering/hash_split", "hash-value"), ("ordering/process_shard", "process-id"), ("seeding/late_seed", "seed-too-late"),
        ("seeding/time_seed", "seed-varies"), ("seeding/missing_python", "seed-missing-python"), ("loading/pool_features", "completion-order"),
        ("ordering/reshuffled_lines", "program-output"), ("ordering/sampled_rows", "query-result"),
        ("memory/padded_batch", "uninitialized-memory"), ("clock/time_budget", "clock"), ("seeding/environment", "generator-unseeded"),
    ],
)  # fmt: skip
def test_a_cause_is_found_without_running_the_program(program: str, rule: str) -> None:
    assert rule in rules_in((PROGRAMS / f"{program}.py").read_text())


@pytest.mark.parametrize(
    "text",
    [
        "words = {'a', 'b'}\nprint(len(words), 'a' in words)\nfor word in sorted(words):\n    print(word)\n",
        "import os\nnames = os.listdir('.')\nnames.sort()\nfor name in names:\n    open(name)\n",
        "import os, logging\nlogging.info('%s', os.listdir('.'))\n",
        "numbers = {1, 2, 3}\nprint([number for number in numbers])\n",
        "def f(known):\n    key = tuple({'a', 'b'})\n    return known[key]\n",
        "def f(known):\n    return known[frozenset({'a', 'b'})]\n",
        "import time, torch\nstart = time.time()\nif time.time() - start > 9:\n    print('slow')\n",
        "import torch\nx = torch.empty(3)\nx.fill_(0)\nprint(x)\n",
        "import numpy\n\ndef draw(rows):\n    return numpy.random.permutation(rows)\n",
        "class Key:\n    def __hash__(self):\n        return hash(self.name) % 64\n",
        "def device(model):\n    found = {one.device for one in model}\n    assert len(found) == 1\n    return found.pop()\n",
        "def one(names):\n    kinds = set(names)\n    if len(kinds) > 1:\n        raise ValueError\n    return list(kinds)[0]\n",
        "import os\nfor name in {'a', 'b'}:\n    os.mkdir(os.path.join('x', name))\n",
        "import os\nfound = [name for name in os.listdir('.') if name == 'config.json']\nopen(found[0])\n",
        "import os\n\ndef newest(folder):\n    return max(os.listdir(folder), key=os.path.getmtime)\n",
        "import glob\nfiles = []\nfiles.extend(glob.glob('*.pt'))\nfor file in sorted(files):\n    open(file)\n",
        "import os\nfiles, labels = [], []\nfor root, _, names in os.walk('.'):\n    for name in names:\n        files.append(name)\n"
        "        labels.append(root)\npairs = [(file, label) for file, label in zip(files, labels)]\npairs = sorted(pairs)\n",
        "import re\nwords = set(open('w').read().split())\npattern = re.compile('|'.join(words))\n",
        "axes = {axis + 4 if axis < 0 else axis for axis in given}\norder = tuple(axes)\n",
        "sizes = {one.shape[0] for one in arrays}\nfirst = list(sizes)[0]\n",
        "rows = [[] for _ in {'a', 'b'}]\nprint(rows[0])\n",
        "def track(value):\n    return [track(one) for one in value]\n\ntrack({'a'})\ntrack(['b'])\n",
        "import time, torch\n\nclass Bar:\n    def show(self, last):\n        if time.time() - last < 1:\n            return\n        print('.')\n",
        "import torch\n\ndef rate(start, count):\n    import time\n    spent = time.time() - start\n    if spent == 0:\n        return 0\n",
        "import random\nrng = random.Random()\n\ndef begin(seed):\n    rng.seed(seed)\n",
        "import torch\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        self.layer = torch.nn.Linear(1, 1)\n\n\n"
        "if __name__ == '__main__':\n    net = Net()\n    net(torch.ones(1))\n",
        "class A:\n    def __init__(self, data):\n        self.names = data.others\n\n    def first(self):\n        return list(self.names)[0]\n\n\n"
        "class B:\n    def __init__(self):\n        self.others = {'a', 'b'}\n",
        "kinds, counts = {'a', 'b'}, {}\nfor kind in kinds:\n    counts[kind] = len(rows[kind])\n",
        "def alpha(values):\n    if len(set(values)) > 1:\n        raise ValueError\n    return set(values).pop()\n",
        "import torch, random\nfor seed in (torch.manual_seed, random.seed):\n    seed(3)\nmodel = torch.nn.Linear(1, 1)\nmodel.fit(random.random())\n",
        "import torch\n\ndef run(xs, names):\n    kinds = set(names)\n    rows = [[n for n, x in enumerate(names) if x == k] for k in kinds]\n"
        "    for i, kind in enumerate(kinds):\n        xs[rows[i]] += run(kind).sum()\n",
        "axes = {1, 2, 3} - set(given)\nother = axes.pop()\n",
        "import torch\nempty = torch.empty((0,))\ntotal = empty + 1\n",
        "import torch\n\ndef history(used):\n    return torch.tensor(list(set(used)), dtype=torch.int64)\n",
        "import torch\n\ndef begin(generator, rows):\n    generator.manual_seed(hash(tuple(rows.tolist())) & 255)\n",
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n\nif __name__ == '__main__':\n"
        "    print(Net()(torch.randn(3)).shape)\n    kept = torch.randn(3)\n",
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n\ndef test():\n    print(Net()(torch.randn(3)).size())\n\n\n"
        "if __name__ == '__main__':\n    test()\n",
        "from pathlib import Path\n\ndef is_filled(folder):\n    return next(Path(folder).iterdir(), None) is not None\n",
        "import torch\n\nclass Norm(torch.nn.Module):\n    def __init__(self):\n"
        "        self.scale = torch.nn.Parameter(torch.empty(3), requires_grad=False)\n",
        "import time, torch\nspent = torch.tensor(time.time() - start)\n",
        "import time, torch\nprint(f'{time.time() % 60}')\nclock = torch.tensor(rows, requires_grad=time.time() > 3)\n",
        "import uuid, torch\nname = uuid.uuid4().hex\n",
        "import time\nparser.add_argument('--start', default=int(time.time()))\n",
        "import sys\n\ndef f():\n    out = sys.stdout\n    for word in {'a', 'b'}:\n        sys.stdout.write(word)\n",
        "def f():\n    for word in {'a', 'b'}:\n        with open(word) as out:\n            out.write(word)\n",
        "import json\n\ndef f(path):\n    json.dump(sorted({'a', 'b'}), path)\n",
        "def log_all(rows):\n    return rows[0]\n\ndef f(other):\n    return log_all(list({'a', 'b'}))\n",
        "def count(rows):\n    return len(rows), sorted(rows)\n\ndef f(other):\n    return count(list({'a', 'b'}))\n",
        "import torch\n\ndef f(table, words):\n    for word in set(words):\n        table[word] = torch.zeros(3)\n",
        "import random, time, torch\ntime.sleep(random.SystemRandom().random() * 0.01)\n",
        "import random, time, torch\nchance = random.SystemRandom()\ntime.sleep(chance.random())\n",
        "import tensorflow as tf\nm = tf.keras.layers.Dense(1, kernel_initializer='zeros')\nprint(m(tf.ones((1, 2))))\n",
        "import tensorflow as tf\nm = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.Constant(2))\nprint(m(tf.ones((1, 2))))\n",
        "import torch\nTABLE = {}\nfor name in ('a', 'b'):\n    TABLE[name] = len(name)\n\ndef layer():\n    return torch.nn.Linear(1, 1)\n",
    ],
)
def test_code_that_cannot_change_a_result_is_not_reported(text: str) -> None:
    assert rules_in(text) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def device(model):\n    found = {one.device for one in model}\n    return found.pop()\n", "hash-order"),
        ("import os\nfound = [name for name in os.listdir('.') if name.endswith('.json')]\nopen(found[0])\n", "listing-order"),
        ("import glob\nfiles = []\nfiles.extend(glob.glob('*.pt'))\nfor file in files:\n    print(open(file))\nfirst = files[0]\n", "listing-order"),
        ("import os\nimages = []\nfor name in os.listdir('.'):\n    images += [name, name]\nfirst = images[0]\n", "listing-order"),
        ("def first(value):\n    return list(value)[0]\n\nfirst({'a', 'b'})\n", "hash-order"),
        ("import random\nrng = random.Random()\nprint(rng.random())\nkept = rng.random()\n", "generator-unseeded"),
        ("import time, torch\n\ndef train(step, start):\n    while time.time() - start < 9:\n        step.backward()\n", "clock"),
        ("import time, torch\nx = torch.tensor(float(time.time()))\n", "clock"),
        ("import time, torch\nrate = make(model, lr=time.time() % 1)\n", "clock"),
        ("import uuid, torch\nrow = uuid.uuid4().int % 10\n", "entropy"),
        ("import random, time, torch\nchance = random.SystemRandom()\ntime.sleep(chance.random())\nx = chance.random()\n", "entropy"),
        ("import random, torch\na = random.SystemRandom()\nb = a\na = b\n", "entropy"),
        ("import tensorflow as tf\nm = tf.keras.layers.Dense(1, kernel_initializer='he_normal')\nprint(m(tf.ones((1, 2))))\n", "seed-missing-tensorflow"),
        ("import time\nfrom flax import nnx\nrngs = nnx.Rngs(int(time.time() * 1000) & 255)\n", "seed-varies"),
        ("import time\nfrom flax import nnx\nrngs = nnx.Rngs(params=int(time.time()), dropout=1)\n", "seed-varies"),
        ("import uuid, torch\nrow = int(uuid.uuid4().hex, 16) % 10\n", "entropy"),
        ("import random\nif given is None:\n    seed = random.randint(1, 9)\nrandom.seed(seed)\nprint(random.random())\n", "seed-varies"),
        ("import time\nparser.add_argument('--seed', default=int(time.time()))\n", "seed-varies"),
        ("from torch import nn\n\ndef run(x):\n    for layer in {nn.Linear(1, 1), nn.Tanh()}:\n        x = layer(x)\n", "address-order"),
        ("from torch import nn\nlayers = {nn.Linear(n, n) for n in sizes}\nnet = nn.Sequential(*layers)\n", "address-order"),
        ("from concurrent.futures import as_completed\n\ndef f(jobs, path):\n    out = open(path)\n    for job in as_completed(jobs):\n"
         "        out.write(job.result())\n", "completion-order"),
        ("import json\n\ndef f(path):\n    json.dump(list({'a', 'b'}), path)\n", "hash-order"),
        ("def first(rows):\n    return rows[0]\n\ndef f(other):\n    return first(list({'a', 'b'}))\n", "hash-order"),
        ("import torch\n\ndef f(table):\n    for word in {'a', 'b'}:\n        table[word] = torch.randn(3)\n", "hash-order"),
        ("def f(table):\n    names = list({'a', 'b'})\n    return table[names].values\n", "hash-order"),
        ("def f(rows):\n    return rows[[int(word[1:]) for word in {'a1', 'b2'}]]\n", "hash-order"),
        ("import os, torch\n\ndef f(path, model):\n    for name in os.listdir(path):\n        model(torch.load(name)).backward()\n", "listing-order"),
        ("def f(path):\n    with open(path) as out:\n        for word in {'a', 'b'}:\n            out.write(word)\n", "hash-order"),
        ("import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n\ndef main():\n    torch.save(Net()(torch.randn(3)), 'x')\n\n\n"
         "if __name__ == '__main__':\n    main()\n", "seed-missing-torch"),
    ],
)  # fmt: skip
def test_similar_code_that_can_change_a_result_is_reported(text: str, rule: str) -> None:
    assert rules_in(text) == [rule]


@pytest.mark.parametrize(("before", "severity"), [("", "differs"), ("study.enqueue_trial({'x': 1})\n", "may differ")])
def test_a_study_that_is_given_the_values_of_trials_may_differ(before: str, severity: str) -> None:
    study = STUDY.format("optuna.create_study()").replace("study.optimize", f"{before}study.optimize")
    (found,) = lint_text(Source("program.py", study))
    assert found.severity.value == severity


@pytest.mark.parametrize(("again", "severity"), [("random.Random(3)", "may differ"), ("random.Random()", "differs")])
def test_an_unseeded_generator_that_is_replaced_by_a_seeded_one_may_differ(again: str, severity: str) -> None:
    text = (
        "import random\n\nclass Shards:\n    def __init__(self):\n        self.rng = random.Random()\n\n"
        f"    def __iter__(self):\n        if self.fixed:\n            self.rng = {again}\n        yield self.rng.random()\n"
    )
    first = lint_text(Source("program.py", text), None)[0]
    assert (first.rule, first.line, first.severity.value) == ("generator-unseeded", 5, severity)


@pytest.mark.parametrize(
    ("seed", "severity"),
    [
        ("seed = int(time.time())", "differs"),
        ("if __name__ == '__main__':\n    seed = int(time.time())", "differs"),
        ("seed = given if given is not None else int(time.time())", "may differ"),
        ("seed = given or int(time.time())", "may differ"),
        ("seed = int(time.time()) or given", "differs"),
        ("seed = 1 if time.time() % 2 else 2", "differs"),
        ("if given is None:\n    given = int(time.time())\nseed = given", "may differ"),
        ("if given is None:\n    pass\nelse:\n    given = int(time.time())\nseed = given", "may differ"),
    ],
)
def test_a_seed_from_the_clock_only_where_the_user_gives_none_may_differ(seed: str, severity: str) -> None:
    text = f"import time, random\ngiven = read()\n{seed}\nrandom.seed(seed)\nprint(random.random())\n"
    (found,) = lint_text(Source("program.py", text), None)
    assert (found.rule, found.severity.value) == ("seed-varies", severity)
    assert found.message.endswith("if the condition there holds.") == (severity == "may differ")


def test_a_suppression_hides_its_rule_and_an_unused_one_is_reported() -> None:
    line = "names = list({'a', 'b'})[0]"
    assert rules_in(line) == ["hash-order"]
    assert rules_in(f"{line}  # determinism: ignore[hash-order]") == []
    assert rules_in(f"{line}  # determinism: ignore") == []
    assert rules_in(f"{line}  # determinism: ignore[clock]") == ["hash-order", "unused-ignore"]


def test_a_suppression_applies_to_all_lines_of_its_statement() -> None:
    ignore = "# determinism: ignore[hash-order]"
    assert rules_in(f"names = list(  {ignore}\n    {{'a', 'b'}}\n)[0]\n") == []
    assert rules_in(f"names = list(\n    {{'a', 'b'}}\n)[0]  {ignore}\n") == []
    assert rules_in(f"def f():  {ignore}\n    return list({{'a', 'b'}})[0]\n") == ["unused-ignore", "hash-order"]


def test_an_unparsable_file_is_a_finding_and_does_not_stop_lint(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "other.py").write_text("x = list({'a', 'b'})[0]\n")
    found = lint(LintRequest((str(tmp_path),))).findings
    assert [one.rule for one in found] == ["unparsable", "unparsable", "hash-order"]
    assert [one.severity.value for one in found] == ["not examined", "not examined", "differs"]
    assert found[0].message.startswith("The file cannot be parsed") and found[1].message.startswith(
        "The file cannot be read"
    )


LOOKUP = """
import torch
from torch import nn


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(17))
        self.fixed = nn.Parameter(torch.zeros(17), requires_grad=False)
        self.other = torch.zeros(17)

    {method}
"""


@pytest.mark.parametrize(
    "method",
    [
        "def forward(self, levels): return self.table[levels]",
        "def look_up(self, levels: torch.Tensor): return self.table[0, levels]",
        "def look_up(self, levels): return self.table[levels.long()]",
        "def look_up(self, levels):\n        rows = torch.tensor(levels)\n        return self.table[rows]",
    ],
)
def test_a_parameter_indexed_by_a_tensor_is_reported(method: str) -> None:
    text = LOOKUP.format(method=method)
    (found,) = lint_text(Source("program.py", text), "cpu")
    assert found.rule == "nondeterministic-op" and "The gradient of self.table" in found.message
    assert rules_in(text) == []


@pytest.mark.parametrize(
    "method",
    [
        "def forward(self, levels): return self.table[0] + self.table[1:]",
        "def forward(self, levels): return self.fixed[levels] + self.other[levels]",
        "def look_up(self, level: int): return self.table[level]",
        "def look_up(self, levels): return self.table[levels]",
        "def look_up(self, levels: torch.Tensor): self.table.data[levels] = 0.0",
        "def forward(self, levels): return [self.table[row] for row in range(17)]",
    ],
)
def test_other_indexing_is_not_reported(method: str) -> None:
    assert rules_in(LOOKUP.format(method=method), "cpu") == []


def test_lint_finds_the_line_that_varies_in_the_example() -> None:
    example = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
    text = example.read_text(encoding="utf-8")
    (found,) = lint_text(Source("train.py", text), "cpu")
    assert found.code == "pixels = self.brightness[levels]"


def test_a_finding_in_a_notebook_has_its_cell_and_line(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": "# Title"},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "words = {'a', 'b'}\n"]},
        {"cell_type": "code", "source": "import os\nfirst = list(words)[0]"},
    ]
    (tmp_path / "note.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    (found,) = lint(LintRequest((str(tmp_path),))).findings
    assert (found.rule, found.cell, found.line, found.fix) == ("hash-order", 3, 2, None)


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%time\nfirst = list(words)[0]", 2),
        ("%%capture kept\n%matplotlib inline\nfirst = list(words)[0]", 3),
        ("%%bash\nfirst = list(words)[0]", None),
        ("files = !ls *.csv\nfirst = list(words)[0]", 2),
        ("times = %timeit -o words\nfirst = list(words)[0]", 2),
        ("words?\nfirst = list(words)[0]", 2),
        ("!pip install \\\n    torch\nfirst = list(words)[0]", 3),
        ("if words:\n    !echo \\\n  some\n    first = list(words)[0]", 4),
        ("text = ('%s'\n% 'a')\nfirst = list(words)[0]", 3),
        ("%pip list\ntext = ('%s'\n  % ('a',))\nfirst = list(words)[0]", 4),
    ],
)
def test_magics_and_shell_commands_do_not_hide_the_rest_of_a_notebook(
    cell: str, line: int | None, tmp_path: Path
) -> None:
    cells = [{"cell_type": "code", "source": source} for source in ("words = {'a', 'b'}", cell, "print(first)")]
    (tmp_path / "note.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    found = [(one.rule, one.cell, one.line) for one in lint(LintRequest((str(tmp_path),))).findings]
    assert found == ([("hash-order", 2, line)] if line is not None else [])


@pytest.mark.parametrize(("last", "severity"), [("assert b.shape == (9,)", "MAY_DIFFER"), ("return b", "DIFFERS")])
def test_a_draw_before_the_seed_may_differ_if_it_stays_within_a_function(
    last: str, severity: str, tmp_path: Path
) -> None:
    text = f"import torch\n\ndef tried():\n    a = torch.rand(3, 3)\n    b = a.flatten()\n    {last}\n\ntried()\ntorch.manual_seed(0)\nx = torch.rand(3, requires_grad=True)\nx.sum().backward()\n"
    (tmp_path / "train.py").write_text(text)
    (found,) = lint(LintRequest((str(tmp_path),))).findings
    assert (found.rule, found.severity.name) == ("seed-too-late", severity)


def test_a_message_about_a_notebook_identifies_lines_by_cell(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "source": "import torch"},
        {"cell_type": "code", "source": "print(1)\nx = torch.rand(3)"},
        {"cell_type": "code", "source": "torch.manual_seed(0)\ny = torch.rand(3)"},
    ]
    (tmp_path / "note.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    (found,) = lint(LintRequest((str(tmp_path),))).findings
    assert (found.rule, found.cell, found.line) == ("seed-too-late", 3, 1)
    assert "after line 2 of cell 2 has drawn" in found.message


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command(), ["lint", *words])
    return result.exit_code, result.output


def test_exit_statuses_are_those_of_linters(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.py", tmp_path / "good.py"
    bad.write_text("x = list({'a', 'b'})[0]\n")
    good.write_text("x = 1\n")
    assert run(str(good))[0] == 0
    status, output = run(str(bad))
    assert status == 1 and f"{bad}:1:10: hash-order [*] (differs)" in output
    assert run(str(bad), "--ignore", "hash-order")[0] == 0
    assert run(str(bad), "--per-file-ignores", "bad.py:hash-order")[0] == 0
    assert run(str(tmp_path / "none.py"))[0] == 2
    assert run(str(bad), "--select", "hash-orders")[0] == 2


def test_diff_says_if_no_finding_has_a_fix(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import numpy\nweights = numpy.random.rand(3)\ntrain(weights)\n")
    status, output = run("--diff", str(file))
    assert status == 1 and "No finding has a fix that can be made automatically" in output


def test_diff_shows_a_fix_and_fix_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    text = "ä = list({'ä', 'b'})[0]\n"
    file.write_text(text)
    status, output = run("--diff", str(file))
    assert status == 1 and "+ä = list(sorted({'ä', 'b'}))[0]" in output and file.read_text() == text
    status, output = run("--fix", str(file))
    assert status == 0 and file.read_text() == "ä = list(sorted({'ä', 'b'}))[0]\n"
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ("names = os.listdir('.')\nfirst = names[0]", "sorted(os.listdir('.'))"),
        ("for name in Path('.').glob('*'):\n    rows.append(name)\nfirst = rows[0]", "sorted(Path('.').glob('*'))"),
        ("first = list(Path('.').iterdir())[0]", "list(sorted(Path('.').iterdir()))"),
        ("found = Path('.').iterdir()\nfirst = next(found)", None),
        ("first = next(Path('.').iterdir())", None),
        ("words = {'a'}\nwords.add('b')\nfirst = list(words)[0]", "list(sorted(words))"),
        ("first = list({os.path.basename(f) for f in rows})[0]", "list(sorted({os.path.basename(f) for f in rows}))"),
        ("first = list({f.stem for f in rows})[0]", "list(sorted({f.stem for f in rows}))"),
        ("words = {'a'}\nwords.add(None)\nfirst = list(words)[0]", None),
        ("draws = np.random.default_rng()", "np.random.default_rng(seed=0)"),
        ("def draw():\n    return np.random.default_rng().normal()", None),
        ("rows = [np.random.default_rng().normal() for _ in range(3)]", None),
    ],
)
def test_a_fix_changes_an_order_or_a_seed_and_nothing_else(line: str, fixed: str | None, tmp_path: Path) -> None:
    """A list in place of an iterator would crash the program; a seed in a function would make all its draws equal."""
    file = tmp_path / "program.py"
    file.write_text(f"import os\nimport numpy as np\nfrom pathlib import Path\nrows = []\n{line}\n")
    _, output = run("--diff", str(file))
    assert "1 finding" in output
    assert (fixed in output) if fixed is not None else "@@" not in output


def test_findings_are_written_as_json_and_sarif(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("ä = 1; x = list({'a', 'b'})[0]\n")
    run(str(file), "--json", str(tmp_path / "found.json"), "--sarif", str(tmp_path / "found.sarif"))
    (found,) = json.loads((tmp_path / "found.json").read_text())["findings"]
    (of_sarif,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    (result,) = of_sarif["results"]
    assert of_sarif["invocations"] == [{"executionSuccessful": True}]
    assert found["rule"] == result["ruleId"] == "hash-order" and result["level"] == "error"
    assert found["help"] == "determinism lint --explain hash-order" and found["help_uri"] is None
    (rule,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["tool"]["driver"]["rules"]
    assert rule["help"]["markdown"] == explanation("hash-order") and "helpUri" not in rule
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    assert result["locations"][0]["physicalLocation"]["region"]["startColumn"] == found["column"] == 17


def test_pages_have_an_address_if_the_package_names_its_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = Message()
    named["Project-URL"] = "Documentation, https://example.org/docs/"
    monkeypatch.setattr("determinism.report.code_scanning.metadata", lambda name: named)
    file = tmp_path / "program.py"
    file.write_text("x = list({'a', 'b'})[0]\n")
    run(str(file), "--json", str(tmp_path / "found.json"), "--sarif", str(tmp_path / "found.sarif"))
    (rule,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["tool"]["driver"]["rules"]
    (found,) = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert rule["helpUri"] == found["help_uri"] == "https://example.org/docs/cause/hash-order"


def test_many_files_give_the_same_result_in_parallel(tmp_path: Path) -> None:
    for number in range(45):
        (tmp_path / f"p{number}.py").write_text("x = list({'a', 'b'})[0]\n")
    request = LintRequest((str(tmp_path),))
    assert lint(request, processes=2) == lint(request, processes=1)


KERAS = """import tensorflow as tf
import random
SEED
m = tf.keras.Sequential([tf.keras.layers.LAYER])
m.fit(x)
"""


@pytest.mark.parametrize(
    ("seed", "layer", "is_named"),
    [
        ("tf.random.set_seed(0)", "Dense(8)", True),
        ("tf.random.set_seed(0)", "Dropout(0.5)", True),
        ("tf.compat.v1.set_random_seed(0)", "Dense(8)", True),
        ("tf.keras.utils.set_random_seed(0)", "Dense(8)", False),
        ("tf.random.set_seed(0); random.seed(0)", "Dense(8)", False),
        ("tf.random.set_seed(0)", "Dropout(0.5, seed=3)", False),
        ("tf.random.set_seed(0)", "Dense(8, kernel_initializer='zeros')", False),
        ("tf.random.set_seed(0)", "Flatten()", False),
        ("seed_everything(0); tf.random.set_seed(0)", "Dense(8)", False),
    ],
)
def test_the_tensorflow_seed_does_not_cover_keras_draws(seed: str, layer: str, is_named: bool) -> None:
    text = KERAS.replace("SEED", seed).replace("LAYER", layer)
    assert rules_in(text) == ["seed-missing-python"] * is_named


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("import keras\nmodel.fit(keras.layers.Dense(8))\n", "Keras"),
        ("import tensorflow as tf\nmodel.fit(tf.random.normal((3,)))\n", "TensorFlow"),
    ],
)
def test_the_message_names_the_library_that_the_program_calls(text: str, title: str) -> None:
    (finding,) = lint_text(Source("program.py", text))
    assert finding.message.startswith(f"{title} draws here")


@pytest.mark.parametrize(
    ("imported", "seed", "draw"),
    [
        ("import tensorflow as tf", "tf.random.set_seed(0)", "tf.random.normal((3,))"),
        ("import tensorflow as tf", "tf.compat.v1.set_random_seed(0)", "tf.compat.v1.random_normal((3,))"),
        ("import tensorflow.compat.v1 as tf", "tf.set_random_seed(0)", "tf.random_uniform((3,))"),
        ("import tensorflow.compat.v1 as tf", "tf.random.set_random_seed(0)", "tf.random.normal((3,))"),
    ],
)
def test_every_way_to_seed_tensorflow_seeds_it_and_nothing_else(imported: str, seed: str, draw: str) -> None:
    text = f"import numpy as np\n{imported}\n{{}}\nx = {{}}\nm.fit(x)\n"
    assert rules_in(text.format(seed, draw)) == []
    assert rules_in(text.format("", draw)) == ["seed-missing-tensorflow"]
    assert rules_in(text.format(seed, "np.random.rand(3)")) == ["seed-missing-numpy"]
    assert rules_in(text.format(f"{seed}; np.random.seed(0)", "np.random.rand(3)")) == []


@pytest.mark.parametrize(
    ("body", "is_named"),
    [
        ("m.train_on_batch(x, y)", True), ("x = queue.get(); m.train_on_batch(x)", True), ("w = update(w, x)", True),
        ("w, s = step_of(w, s)", True), ("y = measured(x)", False), ("time.sleep(1); w = look(w)", False), ("longest = max(longest, x)", False),
        ("done = queue.get()", False),
    ],
)  # fmt: skip
def test_a_loop_with_a_time_limit_is_reported_if_it_trains(body: str, is_named: bool) -> None:
    for begin, condition in (
        ("end = time.time() + 9", "time.time() < end"),
        ("t = time.perf_counter()", "time.perf_counter() - t < 9"),
    ):
        assert rules_in(f"import time, jax\n{begin}\nwhile {condition}:\n    {body}\n") == ["clock"] * is_named


def test_a_returned_comparison_is_traced_through_three_names_to_the_clock() -> None:
    text = (
        "import time, torch\ndef is_over(t):\n    a = time.time() - t\n    b = a + 1\n    c = b + 1\n    return c > 9\n"
    )
    assert rules_in(text) == ["clock"]
    assert rules_in(text.replace("time.time()", "max(t, 1)")) == []


@pytest.mark.parametrize(
    ("body", "is_named"),
    [
        ("total += f.result()", True), ("r = f.result()\n    total += r", True), ("w -= 0.1 * f.result()", True),
        ("w = w - f.result()", True), ("w = add(w, f.result())", True), ("r, n = f.result()\n    w = add(w, r)", True),
        ("by_name[names[f]] = f.result()", False), ("done += 1", False), ("best = max(best, f.result())", False),
        ("rows[f.result()[0]] = f.result()[1]", False), ("n += len(f.result())", False), ("print(f.result())", False),
    ],
)  # fmt: skip
def test_results_summed_in_completion_order_are_reported(body: str, is_named: bool) -> None:
    text = f"import numpy\nfrom concurrent.futures import as_completed\nfor f in as_completed(jobs):\n    {body}\n"
    assert rules_in(text) == ["completion-order"] * is_named


@pytest.mark.parametrize(
    ("added", "is_named"),
    [
        ("f(row)", False),
        ("row.sum()", True),
        ("len(row)", False),
        ("1", False),
        ("part", True),
        ("row.sum() / 3", True),
    ],
)
def test_a_sum_across_threads_is_reported_unless_it_counts(added: str, is_named: bool) -> None:
    text = (
        "import threading, numpy\nlock = threading.Lock()\ntotal = 0\ndef work(rows):\n    global total\n"
        f"    for row in rows:\n        part = row.mean()\n        with lock:\n            total += {added}\n"
        "for rows in numpy.load('rows.npy'):\n    threading.Thread(target=work, args=(rows,)).start()\n"
    )
    assert rules_in(text) == ["thread-race"] * is_named
    assert rules_in(text.replace("for rows in numpy", "if rows := numpy")) == []


def test_a_sum_in_completion_order_is_reported_unless_it_counts() -> None:
    text = "import numpy\nfrom concurrent.futures import as_completed\nx = sum({} for f in as_completed(jobs))\n"
    assert rules_in(text.format("f.result()")) == ["completion-order"]
    assert rules_in(text.format("1")) == rules_in(text.format("len(f.result())")) == []
    lazily = "import numpy\ntotal = 0.0\nfor r in pool.imap_unordered(f, rows):\n    {}\n"
    assert rules_in(lazily.format("total -= r")) == ["completion-order"]
    assert rules_in(lazily.format("total += len(r)")) == rules_in(lazily.format("kept[r.name] = r")) == []


DICTIONARY = """
class Dictionary:
    def __init__(self):
        self.index, self.words = {}, []

    def add(self, word):
        METHOD


d = Dictionary()
for w in {'a', 'b'}:
    d.add(w)
first = d.words[0]
"""


@pytest.mark.parametrize(
    ("method", "is_named"),
    [
        ("self.index[word] = len(self.index)", True),
        ("if word not in self.index:\n            self.index[word] = len(self.words)", True),
        ("self.words.append(word)", True),
        ("self.index[word] = word.upper()", False),
        ("self.index.setdefault(word)", False),
    ],
)
def test_a_set_whose_elements_a_method_numbers_is_reported(method: str, is_named: bool) -> None:
    assert rules_in(DICTIONARY.replace("METHOD", method)) == ["hash-order"] * is_named
    assert rules_in("d = set()\nfor w in {'a', 'b'}:\n    d.add(w)\n") == []


def test_a_finding_in_a_multiline_chain_is_on_the_line_of_its_call() -> None:
    text = "import tensorflow as tf\nds = (\n    tf.data.Dataset.range(9)\n    .batch(2)\n    .map(f, num_parallel_calls=2, deterministic=False)\n)\n"
    (found,) = lint_text(Source("p.py", text))
    assert (found.rule, found.line, found.column) == ("pipeline-order", 5, 6)
    assert found.code.startswith(".map(f")
    assert (
        rules_in(text.replace("deterministic=False)", "deterministic=False)  # determinism: ignore[pipeline-order]"))
        == []
    )


RESEEDED = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
torch.seed()
print(torch.rand(2))
{}
loss = model(torch.rand(2)).sum()
loss.backward()
"""

WARMED_UP = """
import numpy as np
import torch


def warm_up(model):
    with {}:
        model(torch.from_numpy(np.random.rand(2)))


torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
warm_up(model)
np.random.seed(1)
model(torch.ones(2)).sum().backward()
"""

OVERWRITTEN = """
import torch

model = torch.nn.Linear(2, 2)
{}
print(model(torch.ones(2)).sum().item())
"""


@pytest.mark.parametrize(
    ("text", "is_certain"),
    [
        (RESEEDED.format(""), True),
        (RESEEDED.format("torch.manual_seed(1)"), False),
        (WARMED_UP.format("torch.enable_grad()"), True),
        (WARMED_UP.format("torch.no_grad()"), False),
        (OVERWRITTEN.format(""), True),
        (OVERWRITTEN.format("torch.nn.init.constant_(model.weight, 0.5)"), False),
        (OVERWRITTEN.format("model.load_state_dict(torch.load('model.pt'))"), False),
        ("import torch\nx = hash('a') % 4\nprint(torch.ones(x + 1))\n", True),
        ("import torch\nname = f\"cache-{hash('a') % 4}.pkl\"\nprint(torch.ones(2))\n", False),
    ],
)
def test_a_difference_that_need_not_matter_is_reported_as_possible(text: str, is_certain: bool) -> None:
    (finding,) = lint_text(Source("program.py", text), None)
    assert finding.severity == ("differs" if is_certain else "may differ")
    assert ("may differ" in finding.message) is not is_certain


BUFFERED = """
import torch


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.empty(4, 2))
        {}

    def forward(self, x):
        return x @ self.values.t()


torch.manual_seed(0)
model = Memory()
{}
print(model(torch.ones(2)).sum())
"""


@pytest.mark.parametrize(
    ("written", "loaded", "is_named"),
    [
        ("pass", "", True),
        ("self.values.zero_()", "", False),
        ("torch.nn.init.normal_(self.values)", "", False),
        ("self.values = torch.ones(4, 2)", "", False),
        ("pass", "model.load_state_dict(torch.load('model.pt'))", False),
        ("pass", "model.values.fill_(1.0)", False),
    ],
)
def test_a_buffer_that_is_never_written_is_reported(written: str, loaded: str, is_named: bool) -> None:
    assert rules_in(BUFFERED.format(written, loaded)) == ["uninitialized-memory"] * is_named
    library = BUFFERED.format(written, loaded).partition("torch.manual_seed")[0]
    assert rules_in(library) == [], "another file may load it"


OWN_SEEDING = """
import random
import numpy as np
import torch


class Flip:
    def __call__(self, image):
        return image.flip(-1) if random.random() < 0.5 else image


def seed_everything(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)
    {}


seed_everything(1)
flip, model = Flip(), torch.nn.Linear(2, 2)
model(flip(torch.ones(2))).sum().backward()
"""


def test_a_seeding_function_of_the_file_is_judged_by_its_body() -> None:
    assert rules_in(OWN_SEEDING.format("pass")) == ["seed-missing-python"]
    assert rules_in(OWN_SEEDING.format("random.seed(seed)")) == []
    elsewhere = OWN_SEEDING.replace("def seed_everything", "from helpers import seed_everything\ndef other").format(
        "pass"
    )
    assert rules_in(elsewhere) == []


COUNTED = """
from collections import Counter
import torch

counts = {}
for document in ["a b", "b c"]:
    counts.update({})
print(torch.tensor([len(word) for word, _ in counts.{}]))
"""


@pytest.mark.parametrize(
    ("made", "given", "asked", "is_named"),
    [
        ("Counter()", "set(document.split())", "most_common(2)", True),
        ("Counter()", "sorted(set(document.split()))", "most_common(2)", False),
        ("Counter()", "document.split()", "most_common(2)", False),
        ("Counter()", "set(document.split())", "total()", False),
        ("set()", "set(document.split())", "most_common(2)", False),
    ],
)
def test_counting_a_set_is_reported_if_its_order_matters(made: str, given: str, asked: str, is_named: bool) -> None:
    text = COUNTED.replace("counts = {}", f"counts = {made}").replace("update({})", f"update({given})")
    assert rules_in(text.replace("counts.{}", f"counts.{asked}")) == ["hash-order"] * is_named


@pytest.mark.parametrize(
    ("written", "is_named"),
    [("list(words)", True), ("sorted(words)", False), ("len(words)", False), ("'a' in words", False)],
)
def test_an_unsorted_set_in_a_dictionary_written_to_a_file_is_reported(written: str, is_named: bool) -> None:
    text = (
        "import json\nimport torch\nwords = frozenset(w.lower() for w in open('words'))\n"
        f"json.dump({{'words': {written}}}, open('words.json', 'w'))\n"
    )
    assert rules_in(text) == ["hash-order"] * is_named
    assert rules_in(text.replace("json.dump(", "print(")) == []


TAKEN_IN_TIME = """
import queue
import torch

waiting, last = queue.Queue(), torch.ones(2)
for _ in range(4):
    try:
        batch = waiting.get({})
    except queue.Empty:
        {}
    print(batch.sum())
"""


@pytest.mark.parametrize(
    ("limit", "instead", "is_named"),
    [
        ("timeout=0.1", "batch = last", True),
        ("timeout=0.1", "batch = None", False),
        ("timeout=0.1", "continue", False),
        ("timeout=0.1", "raise", False),
        ("timeout=None", "batch = last", False),
        ("", "batch = last", False),
    ],
)
def test_a_fallback_value_after_a_queue_timeout_is_reported(limit: str, instead: str, is_named: bool) -> None:
    assert rules_in(TAKEN_IN_TIME.format(limit, instead)) == ["clock"] * is_named


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("rows = pandas.read_sql('SELECT * FROM t ORDER BY rand() LIMIT 9', con)", ["query-result"]),
        ("rows = con.execute('SELECT x FROM t ORDER BY random_number').fetchall()", []),
        ("log.execute('ORDER BY RANDOM() is what we avoid')", []),
        ("rows = sorted(con.execute('SELECT x FROM t ORDER BY RANDOM()').fetchall())", []),
        ("print('such as', con.execute('SELECT x FROM t ORDER BY RANDOM() LIMIT 1').fetchone())", []),
        ("subprocess.run('shuf train.txt > shuffled.txt', shell=True)", ["program-output"]),
        ("os.system('sort --random-sort train.txt > shuffled.txt')", ["program-output"]),
        ("os.system('sort train.txt | shuf --random-source=seed > shuffled.txt')", []),
        ("subprocess.run(['sort', '-r', 'train.txt'])", []),
        ("subprocess.run(['cat', 'shuf.txt'])", []),
    ],
)
def test_random_orders_of_queries_and_programs_are_reported(use: str, found: list[str]) -> None:
    text = f"import os\nimport subprocess\nimport torch\n{use}\n"
    assert rules_in(text) == found
    assert rules_in(text.replace("import torch\n", "")) == []


IN_A_COROUTINE = """
import asyncio
import torch

async def collect(jobs):
    done = []
    for job in asyncio.as_completed(jobs):
        done.append(await job)
    return {}

for chunk in asyncio.run(collect(jobs)):
    loss = model(torch.from_numpy(chunk)).sum()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("returned", "found"), [("done", ["completion-order"]), ("sorted(done)", [])])
def test_the_result_of_a_coroutine_is_traced_to_its_use(returned: str, found: list[str]) -> None:
    assert rules_in(IN_A_COROUTINE.format(returned)) == found


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("torch.set_num_threads(1 + int(load * 100) % 2)", True),
        ("size = min(64, int(load))", True),
        ("size = 8 if load > 2 else 32", True),
        ("if load > 2:\n    optimizer.step()", True),
        ("if load > 2:\n    print('busy')", False),
        ("most = max(most, load)", False),
        ("print('%.2f' % load)", False),
        ("log['load'] = load / 4", False),
    ],
)
def test_the_load_of_the_machine_is_reported_if_it_decides_something(use: str, found: bool) -> None:
    text = f"import os\nimport torch\nload, _, _ = os.getloadavg()\n{use}\n"
    assert rules_in(text) == ["machine-state"] * found
