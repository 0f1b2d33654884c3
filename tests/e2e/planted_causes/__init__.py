"""Small programs, each with one cause of nondeterminism and a twin without it: ten for each class that is hard to name."""

from __future__ import annotations

from tests.e2e.planted_causes import addresses, arrivals, memory, pipelines, queues, saving, seeding_libraries
from tests.e2e.planted_causes.planted import Planted

CLASSES: dict[str, tuple[Planted, ...]] = {
    "addresses": addresses.PROGRAMS,
    "memory": memory.PROGRAMS,
    "arrivals": arrivals.PROGRAMS,
    "queues": queues.PROGRAMS,
    "saving": saving.PROGRAMS,
    "pipelines": pipelines.PROGRAMS,
    "libraries": seeding_libraries.PROGRAMS,
}
"""The programs, by the class of their cause."""
