"""What became of the seeds, as settings."""

from __future__ import annotations

from determinism.frameworks.registry import SEEDERS
from determinism.seeds.process_generators import numpy_random
from determinism.session import seeding
from determinism.settings.setting import Effect, Setting
from determinism.settings.surroundings import is_installed, is_loaded

_SOURCE = "docs/seeds.md"
_WHY = "Whatever draws from it draws other numbers in each run, unless it begins at the same seed."
_LINE = "determinism.enable(seed=1)"
_NAMES = {
    "python": "seed of random",
    "numpy": "seed of numpy.random",
    "torch": "seed of torch, on every device",
    "tensorflow": "seed of tf.random and Keras",
    "cupy": "seed of cupy.random, on every device",
}


def seed_settings(*, change: bool) -> list[Setting]:
    """The state of the seeds as it is now.

    Args:
        change: Whether settings were to be made; else what is not seeded is missing.
    """
    seeds = seeding.active_seeds()
    if seeds is None:
        effect = Effect.KEPT if change else Effect.MISSING
        detail = "no seed was given" if change else "nothing was seeded by determinism"
        return [Setting("seed", "python", None, None, effect, _WHY, _SOURCE, detail, _LINE)]
    loaded = {"python": True, "numpy": numpy_random() is not None, **{name: is_loaded(name) for name in SEEDERS}}
    after = f"{seeds.master} ({'drawn, ' if seeds.master_was_drawn else ''}rank {seeds.streams.rank})"
    found = []
    for group, name in _NAMES.items():
        if group == "python" or loaded[group] or is_installed(group):
            effect = Effect.NOW if loaded[group] else Effect.WAITING
            effect = Effect.ALREADY if loaded[group] and not change else effect
            failure = seeding.failures().get(group, "")
            effect = Effect.FAILED if failure else effect
            found.append(Setting(name, group, None, None if failure else after, effect, _WHY, _SOURCE, failure, _LINE))
    if loaded["numpy"]:
        found.append(_unseeded_numpy(change))
    return found


def _unseeded_numpy(change: bool) -> Setting:
    reason = seeding.unseeded_numpy_obstacle()
    effect = Effect.FAILED if reason else Effect.NOW if change else Effect.ALREADY
    return Setting(
        "entropy of numpy.random.default_rng() without a seed",
        "numpy",
        "the system's",
        "the system's" if reason else "derived from the seed",
        effect,
        "Generators that are made without a seed take the system's entropy, which is other in each run.",
        "https://numpy.org/doc/stable/reference/random/bit_generators/generated/numpy.random.SeedSequence.html",
        reason or "",
        "numpy.random.default_rng(1)",
    )
