"""The interface through which readers access a run and its processes, wherever the records come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from determinism.trace.chunks import Array, Chunk, Decoder, Names, RecordReader


class ReadSoFar:
    """How far this process has come in reading traces, to show progress."""

    records: int = 0
    """Number of records that were read; repeated reads count too."""


class ProcessTrace(ABC):
    """The records and names of one process of a run."""

    def __init__(self, folder: Path, key: str, description: dict[str, Any], *, from_step: int | None = None) -> None:
        """Take the name and description of a process.

        Args:
            folder: Its folder, for messages about damage.
            key: Its name within the run.
            description: Its description, as in `process.json`.
            from_step: Leave out the records before this step; None for all.
        """
        self.folder = folder
        self.key = key
        self.description = description
        self.from_step = from_step
        self.truncated = False
        """Whether written records are missing; known once `chunks` is exhausted."""

    @property
    def num_removed(self) -> int:
        """Number of the oldest records that were removed, so that the newest stay within the limit of --max-disk."""
        return 0

    @property
    def begin(self) -> int:
        """Number of the process's records before the first one that is read."""
        return 0

    @property
    def first_step(self) -> int:
        """The step of the first record that is read."""
        return 0

    @cached_property
    @abstractmethod
    def names(self) -> Names:
        """The tables of names."""

    @cached_property
    @abstractmethod
    def numbers(self) -> Array:
        """The recorded numbers, such as losses, see `read_numbers`; none if batches count as steps."""

    @cached_property
    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """The number of records and of steps."""

    @property
    @abstractmethod
    def stopped_by(self) -> str | None:
        """`disk-full` or `max-disk` if recording stopped before the process ended."""

    @abstractmethod
    def until(self, limit: int | None) -> ProcessTrace:
        """The same process, opened anew, as if it had made no more than this many records; None for all."""

    @abstractmethod
    def since(self, step: int) -> ProcessTrace:
        """The same process, opened anew, as if it had begun with this step."""

    @abstractmethod
    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Yield every record in order, in the batches in which they were written.

        Args:
            decoder: A decoder shared with other readers.
        """

    @abstractmethod
    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record, and its position there; reads the trace first if `chunks` has not."""

    def give_back(self) -> None:
        """Free the memory of what was read; it is read again when needed."""
        for name in ("names", "numbers"):
            self.__dict__.pop(name, None)

    def reader(self, decoder: Decoder | None = None) -> RecordReader:
        """A reader of the records from the first on, in portions of any size.

        Args:
            decoder: A decoder shared with other readers.
        """
        return RecordReader(self.chunks(decoder))

    @property
    def steps_by(self) -> str | None:
        """What counted as a step; None before anything did."""
        found = self.description.get("steps_by")
        return None if found is None else str(found)

    @property
    def steps_in_turns(self) -> bool:
        """Whether training functions that alternate counted the steps, as in a GAN in JAX."""
        return self.description.get("steps_in_turns") is True


class Trace(ABC):
    """The recording of one run."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    @cached_property
    @abstractmethod
    def processes(self) -> list[ProcessTrace]:
        """The processes that recorded, in order of key."""

    @cached_property
    @abstractmethod
    def missing_processes(self) -> list[str]:
        """Folders of processes that the manifest lists but that no longer exist: removed, emptied or not copied."""

    @property
    def state_every(self) -> int | None:
        """The interval in steps at which its ledgers have the state of the program; None if they do not say."""
        stated = (process.description.get("state_every") for process in self.processes)
        return min((every for every in stated if isinstance(every, int) and every > 0), default=None)
