"""What programs take from outside, one file per family: which functions, what is noted, and what the fixed value is."""

from __future__ import annotations

from determinism.probes.sources import (
    clock,
    completion,
    entropy,
    file_times,
    hashing,
    listing,
    machine,
    memory,
    process,
    queues,
    random_draws,
    seeding,
    timers,
    training,
)

FUNCTIONS = tuple(
    function
    for family in (
        clock, completion, entropy, file_times, hashing, listing, machine, memory, process, queues, random_draws, seeding,
        timers, training,
    )
    for function in family.FUNCTIONS
)  # fmt: skip
"""Every function that is a source."""
