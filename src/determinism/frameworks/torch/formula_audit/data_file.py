"""Writes what an audit found into the data that the recorder uses."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from determinism.frameworks.torch.formula_audit.examine import Findings
from determinism.frameworks.torch.formulas import DATA

_HEAD = """\
# What PyTorch computes otherwise while a dispatch mode is active, by version.
# Written by `python -m determinism.frameworks.torch.formula_audit --write`.
# node: autograd nodes that take another formula; the recorder leaves the stack of modes while they run.
# conjugation_inside, autocast_inside: ops whose own ops miss these; the recorder restores them.
# composite: ops that choose other ops. forward_mode: ops whose forward-mode derivative takes another formula.
# differs: what was measured to differ; "ops" says that other ops run, whether or not a sample showed it in its results.
"""
GROUPS = {
    "node": "nodes",
    "conjugation_inside": "conjugation_inside",
    "autocast_inside": "autocast_inside",
    "composite": "composites",
    "forward_mode": "forward_mode",
}


def write(findings: Findings, facts: dict[str, Any], path: Path = DATA) -> None:
    """Put an audit in the place of an earlier one of the same version and device.

    Args:
        findings: What the audit found.
        facts: `torch`, `device`, `cases`, `dtypes`.
        path: The file.
    """
    audits = tomllib.loads(path.read_text(encoding="utf-8"))["audit"] if path.exists() else []
    kept = [a for a in audits if (a["torch"], a["device"]) != (facts["torch"], facts["device"])]
    audit = dict(facts)
    for key, group in GROUPS.items():
        found = getattr(findings, group)
        audit[key] = [{"name": name, "differs": sorted(found[name])} for name in sorted(found)]
    ordered = sorted([*kept, audit], key=lambda one: (one["torch"], one["device"]))
    path.write_text(_HEAD + "".join(_written(one) for one in ordered), encoding="utf-8")


def _written(audit: dict[str, Any]) -> str:
    lines = ["\n[[audit]]"]
    for key, value in audit.items():
        if key in GROUPS:
            lines += [f"{key} = ["]
            lines += [f'    {{ name = "{one["name"]}", differs = {json.dumps(one["differs"])} }},' for one in value]
            lines += ["]"]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
