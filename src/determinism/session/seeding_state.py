"""The seeds in force in this process, and what belongs to them."""

from __future__ import annotations

from determinism.seeds.process_generators import UnseededNumpy
from determinism.seeds.streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determinism.session.seeds import Seeds


class SeedingState:
    """The seeds in force in this process."""

    def __init__(self) -> None:
        self.seeds: Seeds | None = None
        self.process = ""
        self.children = 0
        self.is_watching = False
        self.failures: dict[str, str] = {}
        self.unseeded_numpy_obstacle: str | None = None
        self.unseeded_numpy = UnseededNumpy(lambda: self.streams)

    @property
    def streams(self) -> Streams:
        """Where the program is."""
        return Streams(0) if self.seeds is None else self.seeds.streams


STATE = SeedingState()
