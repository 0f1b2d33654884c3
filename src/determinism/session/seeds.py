"""The result of `determinism.seed`: everything that draws from the streams of one master seed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from determinism.errors import UsageError
from determinism.frameworks.registry import DATA_SEEDERS, EPOCH_CALLBACKS, SEEDERS
from determinism.seeds import process_generators
from determinism.seeds.streams import Streams
from determinism.session import seeding
from determinism.session.registered_generators import RegisteredGenerators

_VERSION = 1


class Seeds:
    """The streams of one master seed, at the place that the program has come to.

    Attributes:
        streams: The place, and with it what is drawn there.
        master_was_drawn: Whether nobody gave the master seed. Then each process has another one, and none are shared.
        registered: The generators that are seeded with everything else.
    """

    def __init__(self, streams: Streams, master_was_drawn: bool = False) -> None:
        """Take the place; nothing is seeded by it."""
        self.streams = streams
        self.master_was_drawn = master_was_drawn
        self.registered = RegisteredGenerators()

    def __getstate__(self) -> tuple[Streams, bool]:
        # What is registered stays in this process; workers are given the place.
        return self.streams, self.master_was_drawn

    def __setstate__(self, state: tuple[Streams, bool]) -> None:
        self.streams, self.master_was_drawn = state
        self.registered = RegisteredGenerators()

    @property
    def master(self) -> int:
        """The master seed: with it the run can be repeated."""
        return self.streams.master

    def begin(self, **place: Any) -> None:
        """Go to another place and seed everything for it.

        Args:
            **place: `epoch`, `task`, `rank` or `worker`; what is not given stays.

        Raises:
            UsageError: A number cannot name a stream.
            StateError: A framework's generators could not be seeded.
        """
        self.streams = self.streams.moved(**place)
        seeding.activate(self)
        seeding.require_seeded()

    def at(self, **place: Any) -> Seeds:
        """The seeds of another place, without seeding anything or going there.

        Args:
            **place: As for `begin`.
        """
        return Seeds(self.streams.moved(**place), self.master_was_drawn)

    @property
    def shared(self) -> Seeds:
        """The seeds that all ranks share.

        Raises:
            UsageError: The master seed was drawn, so no other rank has it.
        """
        if self.master_was_drawn:
            raise UsageError(
                "seed-not-shared",
                f"The master seed {self.master} was drawn by this process alone, so no stream is shared between ranks. Give "
                "the same master seed in all of them: determinism.seed(1).",
            )
        return Seeds(self.streams.shared)

    def register(self, generator: Any, *, name: str | None = None, shared: bool = False) -> Any:
        """Seed a generator now, and with everything else whenever a new place begins.

        Args:
            generator: A generator of Python, NumPy or a loaded framework, or a function that takes a number of 32 bits.
            name: Its stream's name; without one it is numbered, so register in the same order in each run.
            shared: Whether all ranks give it the same numbers.

        Returns:
            The generator.

        Raises:
            UsageError: It cannot be seeded, the name is taken, or ranks share no master seed.
        """
        if shared:
            _ = self.shared
        _, seed = self.registered.add(generator, name=name, shared=shared)
        seed(self.streams)
        return generator

    def unregister(self, generator: Any) -> None:
        """Leave a generator alone from now on.

        Args:
            generator: What was registered, or its name.

        Raises:
            UsageError: It is not registered.
        """
        self.registered.remove(generator)

    def python(self, name: str = "default") -> Any:
        """A `random.Random` with the stream of a name at this place."""
        return process_generators.python_generator(self.streams, name)

    def numpy(self, name: str = "default") -> Any:
        """A `numpy.random.Generator` with the stream of a name at this place."""
        return process_generators.numpy_generator(self.streams, name)

    def torch(self, name: str = "default", device: str = "cpu") -> Any:
        """A `torch.Generator` with the stream of a name at this place."""
        return import_module(SEEDERS["torch"]).generator(self.streams, name, device)

    def tensorflow(self, name: str = "default") -> Any:
        """A `tf.random.Generator` with the stream of a name at this place."""
        return import_module(SEEDERS["tensorflow"]).generator(self.streams, name)

    def jax(self, name: str = "default") -> Any:
        """A JAX key with the stream of a name at this place."""
        return import_module(SEEDERS["jax"]).key(self.streams, name)

    def generator(self, name: str = "loader") -> Any:
        """The generator for a PyTorch `DataLoader`: `DataLoader(..., generator=seeds.generator())`.

        It is registered, so `begin(epoch=N)` gives it the stream of that epoch, and a resumed run shuffles as the full one.

        Args:
            name: Tells it from the generators of other loaders.

        Raises:
            UsageError: The name is taken.
        """
        return self.register(self.torch(name), name=name)

    def worker_init_fn(self, worker: int) -> None:
        """Seed a worker of a PyTorch `DataLoader`: `DataLoader(..., worker_init_fn=seeds.worker_init_fn)`.

        Workers that outlive an epoch (`persistent_workers=True`) are seeded once, when they start.

        Args:
            worker: Number of the worker.
        """
        self.streams = import_module(DATA_SEEDERS["torch"]).seed_worker(self.streams, worker)

    def sampler(self, data: Any, *, ranks: int = 1, name: str = "sampler") -> Any:
        """A sampler for a PyTorch `DataLoader` that shuffles by the epoch alone, whichever epochs were run before.

        Args:
            data: The data set.
            ranks: How many ranks share it; this one takes its part.
            name: Tells it from others.

        Raises:
            UsageError: This rank is not one of so many.
        """
        rank = self.streams.rank or 0
        if not rank < ranks and ranks > 1:
            raise UsageError(
                "rank-outside",
                f"This process has rank {rank}, but the data set is to be shared by {ranks} ranks, so there is no part for it. "
                "Give ranks= the number of all ranks.",
            )
        own = rank if ranks > 1 else 0
        return import_module(DATA_SEEDERS["torch"]).EpochSampler(data, self, rank=own, ranks=ranks, name=name)

    def keras_callback(self, task: str = "train") -> Any:
        """A Keras callback that begins each epoch with seeds of its own.

        Args:
            task: Under which name epochs are begun.
        """
        return import_module(EPOCH_CALLBACKS["keras"]).ReseedEachEpoch(self, task)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the seeds: numbers and texts only."""
        streams = self.streams
        return {
            "version": _VERSION,
            "master": streams.master,
            "rank": streams.rank,
            "epoch": streams.epoch,
            "task": streams.task,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the place that a checkpoint was made at, and seed everything for it.

        Args:
            state: What `state_dict` gave.

        Raises:
            UsageError: It was made by another version, or by another rank.
        """
        found = (state.get("version"), state.get("rank"))
        if found != (_VERSION, self.streams.rank):
            raise UsageError(
                "seeds-unfit",
                f"The saved seeds have version {found[0]} and rank {found[1]}, but this is rank {self.streams.rank} and reads "
                f"version {_VERSION}, so nothing was seeded. Load in each rank what that rank saved, with the version of "
                "determinism that saved it.",
            )
        self.master_was_drawn = False
        self.streams = Streams(
            state["master"], rank=state["rank"], epoch=state["epoch"], task=state["task"], process=self.streams.process
        )
        seeding.activate(self)

    def __repr__(self) -> str:
        return f"<determinism seeds: {self.streams}>"
