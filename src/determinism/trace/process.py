"""What one run recorded and what each of its processes did, as whatever reads records asks for it, wherever they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from determinism.trace.chunks import Array, Chunk, Decoder, Names, RecordReader


class ReadSoFar:
    """How far this process has come in reading traces, for whoever shows progress."""

    records: int = 0
    """Records that were read, those that were read again too."""


class ProcessTrace(ABC):
    """The records and names of one process of a run."""

    def __init__(self, folder: Path, key: str, description: dict[str, Any], *, from_step: int | None = None) -> None:
        """Name a process.

        Args:
            folder: What messages name if something of it is damaged.
            key: Its name within the run.
            description: What it says about itself.
            from_step: The records before this step are left out; None for all that there are.
        """
        self.folder = folder
        self.key = key
        self.description = description
        self.from_step = from_step
        self.truncated = False
        """Whether records that were written are missing; known when `chunks` has come to its end."""

    @property
    def num_removed(self) -> int:
        """How many of the oldest records were removed, so that the newest stay within the limit of --max-disk."""
        return 0

    @property
    def begin(self) -> int:
        """How many records of the process lie before the first one that is given here."""
        return 0

    @property
    def first_step(self) -> int:
        """The step of the first record that is given here."""
        return 0

    @cached_property
    @abstractmethod
    def names(self) -> Names:
        """The tables of names."""

    @cached_property
    @abstractmethod
    def numbers(self) -> Array:
        """What is known of losses as numbers, see `read_numbers`; nothing where batches count as steps."""

    @cached_property
    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """How many records and steps there are."""

    @property
    @abstractmethod
    def stopped_by(self) -> str | None:
        """`disk-full` or `max-disk` where recording stopped before the process ended."""

    @abstractmethod
    def until(self, limit: int | None) -> ProcessTrace:
        """The same process, read anew, as if it had made no more than this many records; None for all."""

    @abstractmethod
    def since(self, step: int) -> ProcessTrace:
        """The same process, read anew, as if it had begun with this step."""

    @abstractmethod
    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Every record in order, in the batches they were written in.

        Args:
            decoder: One that other readers use too.
        """

    @abstractmethod
    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record and its position there; if `chunks` did not pass it, that is done now."""

    def give_back(self) -> None:
        """Free the memory of what was read; it is read again when it is asked for."""
        for name in ("names", "numbers"):
            self.__dict__.pop(name, None)

    def reader(self, decoder: Decoder | None = None) -> RecordReader:
        """Read the records from the first on, in portions of any size.

        Args:
            decoder: One that other readers use too.
        """
        return RecordReader(self.chunks(decoder))

    @property
    def steps_by(self) -> str | None:
        """What counted as a step; None before anything did."""
        found = self.description.get("steps_by")
        return None if found is None else str(found)

    @property
    def steps_in_turns(self) -> bool:
        """Whether functions that train in turns counted the steps, first one and then another, as in a GAN of JAX."""
        return self.description.get("steps_in_turns") is True


class Trace(ABC):
    """What one run recorded."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    @cached_property
    @abstractmethod
    def processes(self) -> list[ProcessTrace]:
        """The processes that recorded, by key."""

    @cached_property
    @abstractmethod
    def missing_processes(self) -> list[str]:
        """Folders of processes that the manifest lists and that are no longer there: removed, emptied or not copied."""

    @property
    def state_every(self) -> int | None:
        """Every how many steps its ledgers have the state of the program, where they say so."""
        stated = (process.description.get("state_every") for process in self.processes)
        return min((every for every in stated if isinstance(every, int) and every > 0), default=None)
