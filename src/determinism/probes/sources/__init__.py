"""What programs take from outside, one file per family: which functions, what is noted, and what the fixed value is."""

from __future__ import annotations

from determinism.probes.sources import clock, completion, randomness, surroundings

FUNCTIONS = (
    *clock.CLOCK_FUNCTIONS,
    *completion.COMPLETION_FUNCTIONS,
    *randomness.ENTROPY_FUNCTIONS,
    *clock.FILE_TIME_FUNCTIONS,
    *surroundings.HASH_FUNCTIONS,
    *surroundings.LISTING_FUNCTIONS,
    *surroundings.MACHINE_FUNCTIONS,
    *surroundings.MEMORY_FUNCTIONS,
    *surroundings.PROCESS_FUNCTIONS,
    *completion.QUEUE_FUNCTIONS,
    *randomness.DRAW_FUNCTIONS,
    *randomness.SEEDING_FUNCTIONS,
    *clock.TIMER_FUNCTIONS,
    *surroundings.TRAINING_FUNCTIONS,
)
"""Every function that is a source."""
