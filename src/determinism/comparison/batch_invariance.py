"""Tells whether a row's result depends on the batch that it came in, from one run for each size of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from determinism.comparison.batch_origin import OriginSearch
from determinism.comparison.batch_result import BatchRows, TrainingModule
from determinism.comparison.result import Comparison, Recorded, Trouble
from determinism.comparison.row_matches import Matches, match
from determinism.comparison.row_ops import moves_rows
from determinism.comparison.row_places import Axes, Place, axes_of, places_of
from determinism.comparison.runs import recorded_by, summary_of
from determinism.trace.reader import Trace
from determinism.types import Verdict


@dataclass
class Compared:
    """What was found of all places."""

    places: list[Place]
    ops: list[Matches] = field(default_factory=list)
    """Of the ops that take and make rows, in the order of the program."""
    models: list[Matches] = field(default_factory=list)
    """Of the outermost modules that do."""
    models_without_padding: list[Matches] = field(default_factory=list)
    """The same, with rows as they are without padding."""
    axes: dict[int, Axes] = field(default_factory=dict)
    """Per place, by its position."""


def compare_batches(traces: Sequence[Trace], sizes: Sequence[int], further: Sequence[Place] = ()) -> Comparison:
    """Compare the rows of runs with batches of different sizes.

    Args:
        traces: One run for each size; none where ops are not recorded.
        sizes: How many samples a batch had in each.
        further: What was seen besides, such as calls of a checked function.

    Raises:
        TraceError: A trace is damaged.
    """
    compared = _compare([*places_of(traces), *further])
    rows = BatchRows(tuple(sorted(set(sizes))), training=_training(compared.places))
    comparison = Comparison(Verdict.SAME, [summary_of(trace) for trace in traces], _recorded(traces), batch=rows)
    rows.draws = any(placed.call.facts.get("drawn") for place in compared.places for placed in place.calls)
    rows.places = sum(one.matched > 0 for one in (*compared.ops, *compared.models))
    source = _source(compared)
    if source is not None:
        rows.rows = {sizes[run]: count for run, count in source.rows.items()}
        rows.rows_matched = source.matched
    _conclude(comparison, rows, compared, sizes)
    return comparison


def _recorded(traces: Sequence[Trace]) -> Recorded:
    return recorded_by(traces) if traces else Recorded()


def _compare(places: list[Place]) -> Compared:
    found = Compared(places)
    for position, place in enumerate(places):
        axes = found.axes[position] = axes_of(place)
        if axes.is_by_row:
            (found.models if place.is_module else found.ops).append(match(place, axes))
    for place in _padded(places):
        axes = axes_of(place)
        if any(axis >= 0 for axis in axes.outputs):
            found.models_without_padding.append(match(place, axes, without_padding=True))
    return found


def _padded(places: Sequence[Place]) -> list[Place]:
    """The models whose rows may have been padded, each with calls of all lengths."""
    whole: dict[tuple[object, ...], Place] = {}
    for place in places:
        call = place.calls[0].call
        if place.is_module and any(one.unpadded for one in call.inputs):
            kinds = tuple(tuple(len(one.shape) for one in group) for group in (call.inputs, call.outputs))
            whole.setdefault((place.name, kinds), Place(place.name, True)).calls.extend(place.calls)
    for place in whole.values():
        place.calls.sort(key=lambda placed: (placed.run, placed.index))
    return list(whole.values())


def _training(places: Sequence[Place]) -> list[TrainingModule]:
    names = {
        (path, name): TrainingModule(path, name)
        for place in places
        if place.is_module
        for placed in place.calls
        for path, name in placed.call.facts["sensitive"]
    }
    return list(names.values())


def _source(compared: Compared) -> Matches | None:
    """Where the rows are counted: at the model that compares most of them, else at such an op."""
    for group in (compared.models, compared.models_without_padding, compared.ops):
        best = max(group, key=lambda one: one.matched, default=None)
        if best is not None and best.matched:
            return best
    return next((one for group in (compared.models, compared.ops) for one in group), None)


def _conclude(comparison: Comparison, rows: BatchRows, compared: Compared, sizes: Sequence[int]) -> None:
    ops = [one for one in compared.ops if one.conflicts and not moves_rows(one.place.name)]
    models = [one for one in compared.models if one.conflicts]
    padded = [one for one in compared.models_without_padding if one.conflicts]
    if any(one.matched for one in (*compared.models, *compared.models_without_padding)):
        rows.results_differ = bool(models or padded)
    if ops or models or padded:
        search = OriginSearch(compared.places, compared.axes, compared.ops, sizes)
        origin = search.origin(ops, models, padded)
        if origin is not None:
            comparison.verdict = Verdict.DIFFERENT
            comparison.first_divergence, rows.difference = origin
            comparison.absorbed = rows.results_differ is False
            return
        comparison.trouble.append(
            Trouble("batch-state-changes", _STATE.format(", ".join(search.changed_state(models))))
        )
    if any(spot.identifier == "rows-cut" for spot in comparison.recorded.blind_spots):
        comparison.trouble.append(Trouble("batch-rows-cut", _CUT))
    if not comparison.trouble and not _is_covered(compared):
        comparison.trouble.append(_unmatched(rows, compared))
    if comparison.trouble:
        comparison.verdict = Verdict.INCONCLUSIVE


def _is_covered(compared: Compared) -> bool:
    """Whether enough was compared to say that rows do not depend on their batch."""
    if any(one.matched for one in (*compared.models, *compared.models_without_padding)):
        return True
    # There is no model whose results come row by row: then each op on the way must have had equal rows.
    ops = [one for one in compared.ops if not moves_rows(one.place.name)]
    return bool(ops) and all(one.matched for one in ops)


def _unmatched(rows: BatchRows, compared: Compared) -> Trouble:
    """Why no rows could be compared."""
    batches = {placed.call.batch for place in compared.places for placed in place.calls}
    if not compared.models and not compared.ops:
        return Trouble("batch-without-rows", _NO_ROWS.format(_listed(rows.sizes), _listed(sorted(batches))))
    stateless = [match(one.place, one.axes, with_state=False) for one in compared.models]
    if any(one.matched for one in stateless) and not any(one.matched for one in compared.models):
        return Trouble("batch-weights-differ", _WEIGHTS)
    if any(one.matched for one in (*compared.models, *compared.ops)):
        first = next(one for one in compared.ops if not one.matched and not moves_rows(one.place.name))
        return Trouble("batch-rows-unmatched", _LOST.format(first.place.name))
    return Trouble("batch-rows-unmatched", _UNMATCHED)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


_STATE = (
    "The results of equal rows differ, but the model changed buffers of its own while it ran ({}), and no op was found that made something "
    "else of an equal row. So it cannot be told whether the batch or what came before made the difference. Let each run start from the "
    "same state, and make one call for each batch."
)
_CUT = "The rows took too much room, and what came late in a run was not looked at. Give the program less data, or smaller models."
_NO_ROWS = (
    "Nothing was found that takes rows and makes rows, as many as the batch has: sizes were {}, and the calls had batches of {}. See that "
    "{{batch}} in the command is the number of samples in a batch, that PyTorch computes, and that not only their mean is computed."
)
_WEIGHTS = (
    "The same rows came in, but the parameters of the model were others in each run, so results cannot be compared. Seed the program, load "
    "the parameters, or put `determinism run --seed 1 --` before the command."
)
_UNMATCHED = (
    "No row came in batches of two sizes with equal content, so nothing was compared. Let each run take the same samples: seed what draws "
    "them, do not shuffle or augment, and pad to a fixed length."
)
_LOST = (
    "No model was called whose results come row by row, and on the way to the result {} had no rows in common between the sizes. Wrap what is "
    "to be tested in a torch.nn.Module, whose inputs and outputs are then compared."
)
