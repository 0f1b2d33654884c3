"""Libraries that seed themselves with a value that differs in each run, in a folder for installed packages."""

from __future__ import annotations

from tests.e2e.planted_causes.planted import Planted

INSTALLED = "site-packages"
"""The folder of the libraries, next to the program."""


def _program(name: str, line: str, text: str, library: str, *mended: tuple[str, str], is_fixed: bool = True) -> Planted:
    modules = ((f"{INSTALLED}/drawing/__init__.py", library),)
    return Planted(name, ("outside-entropy",), (line,), text, mended, modules, is_fixed=is_fixed)


PROGRAMS = (
    _program(
        "a generator that is made when it is needed",
        "sampler = Sampler()",
        """
        import torch
        from drawing import Sampler

        torch.manual_seed(0)
        sampler = Sampler()
        rates = [sampler.suggest(0.1, 0.9) for _ in range(4)]
        print(torch.tensor(rates).prod().item())
        """,
        """
        import numpy as np

        class Lazy:
            def __init__(self, seed=None):
                self._made = None if seed is None else np.random.RandomState(seed)

            @property
            def made(self):
                if self._made is None:
                    self._made = np.random.RandomState()
                return self._made

        class Sampler:
            def __init__(self, *, kind="uniform", seed=None):
                self.kind = kind
                self._lazy = Lazy(seed)

            def suggest(self, low, high):
                return float(self._lazy.made.uniform(low, high))
        """,
        ("Sampler()\nrates", "Sampler(seed=1)\nrates"),
    ),
    _program(
        "time and process in a stage",
        ".shuffle(50)",
        """
        import torch
        from drawing import Pipeline

        items = (
            Pipeline(range(60))
            .shuffle(50)
            .map(float)
        )
        state = torch.zeros(())
        for item in items:
            state = torch.cos(state + item)
        print(state.item())
        """,
        """
        import os
        import random
        import time

        class Stage:
            def __init__(self, f, *args, **kw):
                self.f, self.args, self.kw = f, args, kw

            def __call__(self, data):
                return self.f(data, *self.args, **self.kw)

        def _shuffle(data, size, rng=None, seed=None):
            if seed is not None:
                rng = random.Random(seed)
            elif rng is None:
                rng = random.Random(int((os.getpid() + time.time()) * 1e9))
            buffer = []
            for item in data:
                buffer.append(item)
                if len(buffer) >= size:
                    yield buffer.pop(rng.randrange(len(buffer)))
            while buffer:
                yield buffer.pop(rng.randrange(len(buffer)))

        def _map(data, f):
            for item in data:
                yield f(item)

        class Pipeline:
            def __init__(self, source, stages=()):
                self.source, self.stages = source, list(stages)

            def compose(self, stage):
                return Pipeline(self.source, [*self.stages, stage])

            def shuffle(self, size, **kw):
                return self.compose(Stage(_shuffle, size, **kw))

            def map(self, f):
                return self.compose(Stage(_map, f))

            def __iter__(self):
                data = iter(self.source)
                for stage in self.stages:
                    data = stage(data)
                yield from data
        """,
        (".shuffle(50)", ".shuffle(50, seed=0)"),
    ),
    _program(
        "a state that may be given",
        "augment = Jitter(0.5)",
        """
        import torch
        from drawing import Jitter

        augment = Jitter(0.5)
        images = torch.ones(4, 8)
        print(sum(augment(image).sum() for image in images).item())
        """,
        """
        import random

        class Jitter:
            def __init__(self, strength, random_state=None):
                self.strength = strength
                self.random = random.Random(random_state)

            def __call__(self, image):
                return image * (1 + self.strength * self.random.random())
        """,
        ("Jitter(0.5)", "Jitter(0.5, random_state=3)"),
    ),
    _program(
        "a generator as an argument",
        "split(list(range(40)), 0.5)",
        """
        import torch
        from drawing import split

        train, test = split(list(range(40)), 0.5)
        state = torch.zeros(())
        for one in train:
            state = torch.sin(state + one)
        print(state.item())
        """,
        """
        import numpy

        def split(items, share, rng=None):
            if rng is None:
                rng = numpy.random.default_rng()
            order = rng.permutation(len(items))
            count = int(share * len(items))
            return [items[i] for i in order[:count]], [items[i] for i in order[count:]]
        """,
        ("0.5)", "0.5, numpy.random.default_rng(1))"),
        ("import torch\n", "import numpy\nimport torch\n"),
    ),
    _program(
        "seeded when it is imported",
        "import drawing",
        """
        import torch
        import drawing

        print(torch.tensor(drawing.noise(6)).exp().sum().item())
        """,
        """
        import random
        import time

        _GENERATOR = random.Random(time.time_ns())

        def noise(count):
            return [_GENERATOR.random() for _ in range(count)]
        """,
        ("drawing.noise(6)", "[0.5] * 6"),
        is_fixed=False,
    ),
    _program(
        "a number of the network",
        "drawing.initialised(8)",
        """
        import torch
        import drawing

        weights = drawing.initialised(8)
        print(torch.nn.Parameter(weights).square().sum().item())
        """,
        """
        import uuid
        import torch

        def initialised(size, seed=None):
            generator = torch.Generator()
            generator.manual_seed(uuid.uuid4().int % 2**63 if seed is None else seed)
            return torch.randn(size, generator=generator)
        """,
        ("initialised(8)", "initialised(8, seed=5)"),
    ),
    _program(
        "bytes of the system",
        'make("noisy")',
        """
        import torch
        from drawing import make

        environment = make("noisy")
        state = torch.tensor(environment.reset())
        for _ in range(5):
            state = torch.cos(state + environment.step())
        print(state.item())
        """,
        """
        import os
        import numpy as np

        class Environment:
            def __init__(self, name, seed):
                entropy = int.from_bytes(os.urandom(8), "big") if seed is None else seed
                self.generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))

            def reset(self):
                return float(self.generator.normal())

            def step(self):
                return float(self.generator.normal())

        def make(name, *, seed=None):
            return Environment(name, seed)
        """,
        ('make("noisy")', 'make("noisy", seed=2)'),
    ),
    _program(
        "everything is seeded",
        "set_up()",
        """
        import torch
        from drawing import set_up

        set_up()
        model = torch.nn.Linear(6, 3)
        print(model(torch.ones(2, 6)).sum().item())
        """,
        """
        import random
        import time
        import torch

        def set_up(seed=None, verbose=False):
            if seed is None:
                seed = time.time_ns() % 2**32
            random.seed(seed)
            torch.manual_seed(seed)
            return seed
        """,
        ("        set_up()".strip() + "\nmodel", "set_up(11)\nmodel"),
    ),
    _program(
        "a default inside",
        "study = create_study()",
        """
        import torch
        from drawing import create_study

        study = create_study()
        best = study.optimize(lambda x: torch.sin(torch.tensor(x)).item(), 5)
        print(best)
        """,
        """
        import random

        class Search:
            def __init__(self, seed=None):
                self.random = random.Random(seed)

        class Study:
            def __init__(self, search):
                self.search = search

            def optimize(self, function, count):
                return min(function(self.search.random.random()) for _ in range(count))

        def create_study(search=None):
            return Study(search or Search())
        """,
        ("create_study()\n", "create_study(Search(4))\n"),
        ("import create_study", "import Search, create_study"),
        is_fixed=False,
    ),
    _program(
        "one of two is seeded",
        "noise = Noise(0.3)",
        """
        import torch
        from drawing import Noise

        mask = Noise(0.5, seed=1)
        noise = Noise(0.3)
        x = torch.linspace(0, 1, 9)
        for _ in range(3):
            x = noise(mask(x))
        print(x.sum().item())
        """,
        """
        import secrets
        import numpy as np

        class Noise:
            def __init__(self, scale, seed=None):
                self.scale = scale
                self.rng = np.random.default_rng(secrets.randbits(64) if seed is None else seed)

            def __call__(self, x):
                return x + self.scale * float(self.rng.normal())
        """,
        ("Noise(0.3)", "Noise(0.3, seed=2)"),
    ),
)
