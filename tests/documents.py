"""JSON documents for tests: one with every field filled in, and functions that fill every place with one string."""

from __future__ import annotations

import copy
import math
from typing import Any

from determinism.report.document import document
from determinism.report.entries import answer, headline
from determinism.report.story import story_document
from tests.builders import make_crowded, make_different

FILE = "/home/ada/project/train.py"


def make_place(line: int, code: str, function: str = "train_step") -> dict[str, Any]:
    """A place in the program."""
    return {"file": FILE, "line": line, "function": function, "code": code}


def make_full_document() -> dict[str, Any]:
    """A document for two runs that differ, with everything that a report can show."""
    found = document(make_different())
    found.update(
        sources=[make_source()],
        compared_runs=[1, 2],
        divergence_by_step=[
            {"step": step, "last_step": step, "records": 120, "different": 0 if step < 3 else min(118, 4 ** (step - 3))}
            for step in range(10)
        ],
        losses=[make_loss(step) for step in range(10)],
        dataflow=make_dataflow(),
        causes=[make_cause()],
        fixes=[
            make_fix(),
            make_fix(id="code", title="Sort it.", env=None, code="for name in sorted(names):\n    x", verified=False),
        ],
        environment=[{"name": "PYTHONHASHSEED", "first": "not set", "second": "0"}],
        ran_on={"python": "3.12.1", "package torch": "2.13.0", "processor": "A processor", "gpus": "none"},
    )
    found.update(
        experiments=[*make_cause()["experiments"], make_experiment(factor="listing order")],
        diagnosis="The budget was used up.",
        varied=["memory", "schedule"],
        evidence={
            "source": "repeats",
            "folder": "/home/ada/project/.determinism/evidence",
            "note": "Output 1 was not kept.",
        },
        reproducer="/home/ada/project/.determinism/evidence/reproduce.py",
    )
    found["first_divergence"]["outputs"][0].update(
        distinct_one_thread=1,
        distinct_filled_memory=None,
        distinct_alignments=2,
        examples=[{"index": [3, 17], "first": "0.1", "second": "0.10000001"}],
        extent=[[3, 3], [0, 511]],
    )
    found["recorded"]["blind_spots"] = [
        {"id": "fused-kernels", "what": "fused kernels", "reason": "They were compiled.", "count": 12, "share": 0.01}
    ]
    details = [entry for entry in found["story"] if entry["is_detail"]]
    found.update(headline=headline(found), story=[*story_document(answer(found)), *details])
    return found


def make_source() -> dict[str, Any]:
    """The lines around the forward site."""
    lines = ["class Model(nn.Module):", "", "    def forward(self, tokens):", "        # embed them", *(
        f"        x = self.{layer}(x)" for layer in ("embedding", "blocks", "norm", "head")
    )]  # fmt: skip
    lines[4] = "        x = self.embedding(tokens)"
    return {"file": FILE, "line": 17, "first": 13, "lines": lines}


def make_loss(step: int) -> dict[str, Any]:
    """A loss that falls, and differs from step 4 on."""
    loss = 2.3 * math.exp(-step / 4)
    return {"step": step, "first": loss, "second": loss + (0.0 if step < 4 else 1e-7 * 8 ** (step - 4))}


def make_cause(**changes: Any) -> dict[str, Any]:
    """A confirmed cause."""
    fields: dict[str, Any] = {
        "id": "nondeterministic-op",
        "title": "An op whose threads add in any order",
        "status": "confirmed",
        "evidence": ["100 repeats on equal inputs gave 37 distinct results."],
        "experiments": [
            {
                "factor": "threads",
                "action": "fixed",
                "runs": 3,
                "equal": True,
                "outcome": "the difference went away",
                "seconds": 4.5,
            },
            {
                "factor": "hash seed",
                "action": "perturbed",
                "runs": 3,
                "equal": False,
                "outcome": "no difference came",
                "seconds": None,
            },
        ],
        "sites": [make_place(17, "x = self.embedding(tokens)", "forward")],
    }
    return {**fields, **changes}


def make_experiment(**changes: Any) -> dict[str, Any]:
    """An experiment in which the difference stayed."""
    fields: dict[str, Any] = {
        "factor": "hash seed",
        "action": "fixed",
        "runs": 2,
        "equal": None,
        "outcome": "the difference stayed",
        "seconds": 3.0,
    }
    return {**fields, **changes}


def make_fix(**changes: Any) -> dict[str, Any]:
    """A verified fix."""
    fields: dict[str, Any] = {
        "id": "one-thread",
        "title": "Compute with one thread",
        "code": None,
        "patch": None,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "verified": True,
        "step_time_ratio": 1.31,
        "runs": 3,
        "steps": None,
        "side_effect": None,
    }
    return {**fields, **changes}


def make_batch() -> dict[str, Any]:
    """A comparison of rows in batches of two sizes, some of which differ."""
    return {
        "sizes": [1, 8],
        "rows": [{"size": 1, "count": 64}, {"size": 8, "count": 60}],
        "rows_matched": 60,
        "places": 12,
        "difference": {"kind": "op", "sizes": [1, 8], "rows": 7, "rows_compared": 60, "training": False},
        "results_differ": True,
        "training_modules": [{"module": "norm", "class": "BatchNorm1d"}],
        "tried": [make_fix(title="Pad each batch", verified=False)],
        "not_told": None,
    }


def make_node(identifier: int, distance: int, op: str, differs: bool | None, **changes: Any) -> dict[str, Any]:
    """A record near the first divergence."""
    fields: dict[str, Any] = {
        "id": identifier,
        "distance": distance,
        "op": op,
        "module": "encoder.embedding",
        "step": 3,
        "phase": "backward",
        "site": make_place(41, "loss.backward()"),
        "differs": differs,
        "outputs": [{"dtype": "float32", "shape": [1024, 512], "device": "cuda:0"}],
    }
    return {**fields, **changes}


def make_dataflow() -> dict[str, Any]:
    """Two rows above the first divergence and two below."""
    nodes = [
        make_node(0, -2, "aten::native_layer_norm_backward", False, module="encoder.norm"),
        make_node(1, -2, "determinism::batch", False, module=None, phase="data"),
        make_node(2, -1, "aten::mul.Tensor", False),
        make_node(3, -1, "aten::_to_copy", None, module=None),
        make_node(4, 0, "aten::embedding_dense_backward", True),
        make_node(5, 1, "aten::_foreach_add_.List", True, module=None, phase="optimizer"),
        make_node(6, 1, "aten::linalg_vector_norm", True, module=None, phase="other"),
        make_node(7, 1, "aten::eq.Scalar", False, module=None, phase="other"),
        make_node(8, 2, "aten::_local_scalar_dense", True, module=None, phase="other"),
    ]
    pairs = [(0, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 6), (4, 7), (6, 8)]
    edges = [{"from": start, "to": end, "differs": start == 4 or start == 6} for start, end in pairs]
    return {"nodes": nodes, "edges": edges, "left_out": 3}


def flooded(text: str) -> dict[str, Any]:
    """A document with everything filled in, in which every string that a program can influence is the same text.

    Words defined by the schema are unchanged, so the document stays valid.
    """
    found = copy.deepcopy(make_full_document())
    crowded = document(make_crowded(text, text))
    for key in ("runs", "trouble", "divergences", "dead_differences"):
        found[key] = crowded[key]
    found["missing"] = [{"id": text, "site": make_place(1, text), "fix": text}]
    found["leftovers"] = [{"file": text, "changed_in": 1, "read_in": 2, "change": "created"}]
    found["printed"] = {"runs": [1, 2], "first": text, "second": text}
    found["open_settings"] = [{"name": text, "why": text}]
    found["extra_runs"] = {"count": 2, "racy": [text]}
    found["recorded"]["blind_spots"][0]["share"] = None
    return {key: _filled(value, text) if key not in ("schema", "verdict") else value for key, value in found.items()}


_WORDS = {"kind", "phase", "status", "action", "source"}


def _filled(value: Any, text: str, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _filled(item, text, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, text) for item in value]
    return text if isinstance(value, str) and key not in _WORDS else value
