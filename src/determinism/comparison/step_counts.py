"""Counts, step by step, how many records were compared and how many of them differ, in little memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from determinism.comparison.align import Pairing
from determinism.comparison.course import MOST_ENTRIES, StepSpan
from determinism.trace.chunk import Array, Chunk
from determinism.types import Role


class StepCounts:
    """The counts of one process; of very many steps, several are counted together."""

    def __init__(self) -> None:
        self._width = 1
        """How many steps are counted together."""
        self._counts: dict[int, list[int]] = {}
        """By the step divided by the width: records, and how many of them differ."""
        self._last_step = -1

    def add_equal(self, chunk: Chunk) -> None:
        """Count records that are equal in both runs."""
        self._add(chunk.columns["step"], _counting(chunk), np.zeros(chunk.rows, dtype=bool))

    def add(self, first: Chunk, second: Chunk, pairing: Pairing, outputs: Array) -> None:
        """Count records of both runs.

        Args:
            first: Records of the first run.
            second: Records of the second run.
            pairing: Which of them belong together.
            outputs: For each entry of the pairing, whether the outputs differ.
        """
        alone = (pairing.first < 0) | (pairing.second < 0)
        steps, counting = np.zeros(len(alone), dtype=np.int64), np.zeros(len(alone), dtype=bool)
        for chunk, rows in ((second, pairing.second), (first, pairing.first)):
            there = rows >= 0
            steps[there] = chunk.columns["step"][rows[there]]
            counting[there] = _counting(chunk)[rows[there]]
        self._add(steps, counting, outputs | alone)

    def _add(self, steps: Array, counting: Array, different: Array) -> None:
        steps, different = steps[counting], different[counting]
        if not len(steps):
            return
        self._last_step = max(self._last_step, int(steps.max()))
        keys, inverse, records = np.unique(steps // self._width, return_inverse=True, return_counts=True)
        differing = np.bincount(inverse, weights=different, minlength=len(keys))
        for key, num_records, num_different in zip(keys.tolist(), records.tolist(), differing.tolist(), strict=True):
            counts = self._counts.setdefault(key, [0, 0])
            counts[0] += num_records
            counts[1] += int(num_different)
        while len(self._counts) > 2 * MOST_ENTRIES:
            self._widen()

    def _widen(self) -> None:
        self._width *= 2
        narrow, self._counts = self._counts, {}
        for key, (records, different) in narrow.items():
            counts = self._counts.setdefault(key // 2, [0, 0])
            counts[0] += records
            counts[1] += different

    @staticmethod
    def spans(several: Iterable[StepCounts]) -> list[StepSpan]:
        """The counts of several processes together, in the order of the steps."""
        total = StepCounts()
        for one in several:
            while total._width < one._width:
                total._widen()
            total._last_step = max(total._last_step, one._last_step)
            for key, (records, different) in one._counts.items():
                counts = total._counts.setdefault(key * one._width // total._width, [0, 0])
                counts[0] += records
                counts[1] += different
        while len(total._counts) > MOST_ENTRIES:
            total._widen()
        width = total._width
        return [
            StepSpan(key * width, min((key + 1) * width - 1, total._last_step), *counts)
            for key, counts in sorted(total._counts.items())
        ]


def _counting(chunk: Chunk) -> Array:
    """Which records count: not those that only say that a step has ended."""
    return np.asarray(chunk.columns["role"] != Role.STATE)
