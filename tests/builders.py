"""Comparisons for tests, each built from the few fields that are special about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from determinism.comparison.divergence import (
    DeadDifference,
    Diagnosis,
    Divergence,
    Evidence,
    OutputDifference,
    ValueExample,
    Visible,
)
from determinism.comparison.result import BlindSpot, Comparison, Recorded, RunSummary, Trouble
from determinism.op_semantics import Op, semantics_of
from determinism.trace.schema import Frame
from determinism.types import Kind, Verdict

WEIRD = "\x1b[31mred\x1b[0m [bold]x[/bold] \udce9 a\nb\r\x07\u202e :smile: \x9b2J"
"""Terminal sequences, markup, a surrogate, line breaks, right-to-left text, an emoji code."""


def make_frame(line: int = 41, **changes: Any) -> Frame:
    """A frame of user code."""
    return Frame("/home/ada/project/train.py", line, "train_step", "loss.backward()")._replace(**changes)


def make_output(**changes: Any) -> OutputDifference:
    """An output in which some elements differ."""
    fields: dict[str, Any] = {
        "dtype": "float32",
        "shape": (1024, 512),
        "device": "cuda:0",
        "elements": 524_288,
        "elements_different": 37,
        "max_ulp": 3,
        "max_abs": 1.1920929e-07,
        "repeats": 100,
        "distinct": 37,
    }
    return OutputDifference(**{**fields, **changes})


def make_looked_at(text: str = "0.5", **changes: Any) -> OutputDifference:
    """An output whose values a further run has inspected."""
    fields: dict[str, Any] = {
        "distinct_one_thread": 1,
        "distinct_alignments": 1,
        "examples": (ValueExample((3, 0), text, "0.25"),),
        "extent": ((3, 7), (0, 511)),
    }
    return make_output(**{**fields, **changes})


def make_evidence(folder: str = "/home/ada/project/traces", **changes: Any) -> Evidence:
    """The evidence that a confirming run kept."""
    fields: dict[str, Any] = {
        "source": "repeats",
        "folder": f"{folder}/evidence",
        "note": "",
        "reproducer": f"{folder}/reproducer/reproduce.py",
    }
    return Evidence(**{**fields, **changes})


def make_divergence(**changes: Any) -> Divergence:
    """A nondeterministic backward op at step 3."""
    fields: dict[str, Any] = {
        "kind": Kind.OP,
        "process": "main",
        "record": 1234,
        "records_of": 0,
        "step": 3,
        "phase": "backward",
        "op": "aten.embedding_dense_backward.default",
        "module": "encoder.embedding",
        "site": None,
        "forward_site": make_frame(17, function="forward", code="x = self.embedding(tokens)"),
        "stack": (make_frame(41), make_frame(63, function="main", code="train_step(batch)")),
        "inputs_equal": True,
        "outputs": (make_output(),),
        "detail": "Output 0 has digest 5a8a768a in run 1 and 472eedad in run 2.",
    }
    fields |= changes
    fields["op"] = Op(fields["op"], semantics_of(fields["op"]))
    return Divergence(**fields)


def make_run(number: int = 1, **changes: Any) -> RunSummary:
    """A run that ended successfully."""
    fields: dict[str, Any] = {
        "command": ["python", "train.py"],
        "exit_status": 0,
        "stopped_by": None,
        "seconds": 12.5,
        "trace": f"/home/ada/project/.determinism/2026-01-05T10-20-30/run-{number}",
    }
    return RunSummary(**{**fields, **changes})


def make_recorded(**changes: Any) -> Recorded:
    """1,234 records in 10 steps."""
    fields: dict[str, Any] = {"records": 1234, "steps": 10, "steps_by": "optimizer", "processes": 1}
    return Recorded(**{**fields, **changes})


def make_comparison(**changes: Any) -> Comparison:
    """Two runs that were the same; changes may also name fields of the diagnosis."""
    fields: dict[str, Any] = {
        "verdict": Verdict.SAME,
        "runs": [make_run(1), make_run(2)],
        "recorded": make_recorded(),
    }
    of_diagnosis = {one.name for one in dataclasses.fields(Diagnosis)}
    diagnosis = Diagnosis(**{name: changes.pop(name) for name in of_diagnosis & changes.keys()})
    return Comparison(**{**fields, "diagnosis": diagnosis, **changes})


def make_different(**changes: Any) -> Comparison:
    """Two runs that differ from step 3 on."""
    fields: dict[str, Any] = {
        "verdict": Verdict.DIFFERENT,
        "first_divergence": make_divergence(),
        "first_visible": Visible(4, "loss"),
        "infected": [Visible(3, "gradient encoder.embedding.weight"), Visible(4, "loss")],
    }
    return make_comparison(**{**fields, **changes})


def make_inconclusive(*messages: str, **changes: Any) -> Comparison:
    """A comparison without a verdict, for these reasons."""
    trouble = [Trouble(f"trouble-{number}", message) for number, message in enumerate(messages)]
    return make_comparison(**{"verdict": Verdict.INCONCLUSIVE, "trouble": trouble, **changes})


def make_crowded(text: str = "something", path: str = "/data/train.py") -> Comparison:
    """A comparison with more content than fits, with one text in all places."""
    frames = tuple(make_frame(line, file=path, function=text, code=text) for line in range(1, 9))
    first = make_divergence(
        process=text,
        op=text,
        module=text,
        site=frames[0],
        forward_site=frames[1],
        stack=frames,
        inputs_equal=None,
        outputs=tuple(make_looked_at(text, dtype=text, device=text, shape=(2,) * 20) for _ in range(5)),
        detail=text,
        thread=text,
    )
    others = [
        make_divergence(process=f"{number} {text}", op=text, site=frames[2], received_from=text if number % 2 else None)
        for number in range(6)
    ]
    return make_different(
        runs=[make_run(number, trace=f"{path}/{text}/{number}", exit_status=number) for number in range(1, 7)],
        recorded=make_recorded(
            steps_by="batches",
            processes=7,
            blind_spots=[BlindSpot(text, text, text, number * 1000) for number in range(9)],
        ),
        trouble=[Trouble(text, text) for _ in range(3)],
        first_divergence=first,
        divergences=others,
        evidence=make_evidence(f"{path}/{text}", note=text),
        first_visible=Visible(4, text),
        infected=[Visible(number, text) for number in range(4, 20)],
        absorbed=True,
        dead_differences=12_345,
        dead_first=[DeadDifference(number, "init", text, frames[3]) for number in range(5)],
        environment=[(text, text, text) for _ in range(9)],
    )


def make_varied() -> Iterator[tuple[str, Comparison]]:
    """Comparisons of every kind, with their names."""
    yield "same", make_comparison()
    for kind in Kind:
        yield kind.value, make_different(first_divergence=make_divergence(kind=kind))
    yield "no kind", make_different(first_divergence=make_divergence(kind=None, inputs_equal=None), level="step")
    yield "no divergence", make_comparison(verdict=Verdict.DIFFERENT, runs=[make_run(), make_run(2, exit_status=-9)])
    yield "strict", make_comparison(verdict=Verdict.DIFFERENT, dead_differences=1)
    yield "inconclusive", make_inconclusive("Both runs ended with exit status 1.")
    yield "several reasons", make_inconclusive("One reason.", "Another reason.")
    yield "nothing ran", make_inconclusive("No process recorded anything.", runs=[], recorded=Recorded())
    for name, number in (("nan", float("nan")), ("infinite", float("-inf"))):
        yield (
            name,
            make_different(
                first_divergence=make_divergence(outputs=(make_output(max_abs=number),)),
                runs=[make_run(1, seconds=number), make_run(2)],
            ),
        )
    yield (
        "huge",
        make_different(
            first_divergence=make_divergence(step=10**12, outputs=(make_output(max_ulp=2**64, elements=10**30),))
        ),
    )
    yield (
        "nothing known",
        make_different(
            first_divergence=make_divergence(
                module=None, forward_site=None, stack=(), outputs=(OutputDifference("bool", (), "cpu", 1),), detail=""
            )
        ),
    )
    yield "weird", make_crowded(WEIRD, f"/data/{WEIRD}")
    yield "empty strings", make_crowded("", "")
    yield "long", make_crowded("word " * 20_000, "/long" * 1000)
