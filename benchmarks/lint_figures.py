"""Measures lint: the causes of the planted programs that it names before a run, and its findings per line of other code.

    python -m benchmarks.lint_figures causes
    python -m benchmarks.lint_figures catalogue
    python -m benchmarks.lint_figures code FOLDER...

What is found in code of others has to be judged by hand: a sample of it is printed, the same one each time.
"""

from __future__ import annotations

import json
import random
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from determinism.lint.reading import Source
from determinism.lint.run import LintRequest, lint, lint_file, lint_text
from tests.e2e import cause_programs
from tests.e2e.expected_causes import CAUSES, CauseProgram

RESULTS = Path(__file__).parent / "results"
_SAMPLE = 100


def programs() -> list[CauseProgram]:
    """Every program with a known cause, once."""
    found: dict[str, CauseProgram] = {}
    for value in vars(cause_programs).values():
        if isinstance(value, tuple):
            found.update({one.path: one for one in value if isinstance(one, CauseProgram)})
    return [one for one in found.values() if one.causes]


def named_causes() -> dict[str, object]:
    """By class of programs, how many causes lint names, and which it does not."""
    known: Counter[str] = Counter()
    named: Counter[str] = Counter()
    missed: list[str] = []
    for program in programs():
        family = program.path.partition("/")[0]
        files = {program.path + ".py", *(cause.file for cause in program.causes if cause.file)}
        rules = {
            one.rule for file in files if (CAUSES / file).exists() for one in lint_file(str(CAUSES / file), "cpu")[1]
        }
        for cause in program.causes:
            known[family] += 1
            if rules & {cause.identifier, *cause.or_identifiers}:
                named[family] += 1
            else:
                missed.append(f"{program.path}: {cause.identifier}")
    families = {family: {"named": named[family], "known": count} for family, count in sorted(known.items())}
    return {"named": named.total(), "known": known.total(), "families": families, "missed": missed}


_RESUMES = """import torch


def train(model, loader, path):
    optimizer = torch.optim.Adam(model.parameters())
    MAKES
    model.load_state_dict(torch.load(path)["model"])
    for epoch in range(3):
        for images in loader:
            model(images).backward()
            optimizer.step()
            INNER
        torch.save(state, path)
"""
_PARTS = {
    "model": "model.state_dict()",
    "optimizer": "optimizer.state_dict()",
    "epoch": "epoch",
    "rng": "torch.get_rng_state()",
}


def catalogue() -> dict[str, object]:
    """By class of causes seen in public issues, how many lint names from the line at fault, and why not the others."""
    entries = tomllib.loads((Path(__file__).parent / "lint_catalogue.toml").read_text(encoding="utf-8"))
    families: dict[str, object] = {}
    missed: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    for family, causes in entries.items():
        named = 0
        for name, cause in causes.items():
            found = (
                []
                if "missed" in cause
                else [one.rule for one in lint_text(Source("p.py", _text(cause)), _device(cause))]
            )
            named += bool(found)
            if found:
                rules[f"{family}.{name}"] = sorted(set(found))
            else:
                missed[f"{family}.{name}"] = cause.get("missed", "NOT NAMED")
        families[family] = {"named": named, "known": len(causes)}
    named_all = len(rules)
    return {
        "named": named_all,
        "known": named_all + len(missed),
        "families": families,
        "rules": rules,
        "missed": missed,
    }


def _device(cause: dict[str, Any]) -> str | None:
    device = cause.get("device")
    return None if device is None else str(device)


def _text(cause: dict[str, Any]) -> str:
    """The program of a cause; one of checkpoints is told by what it saves."""
    if "code" in cause:
        return str(cause["code"])
    state = "state = {" + ", ".join(f'"{part}": {_PARTS[part]}' for part in cause["saves"]) + "}"
    inner = f"{state}\n            torch.save(state, path)" if cause.get("inner") else state
    return _RESUMES.replace("MAKES", str(cause.get("makes", "pass"))).replace("INNER", inner)


def found_in(folders: list[str]) -> dict[str, object]:
    """How many lines and findings folders have, by rule, and a sample of the findings."""
    began = time.monotonic()
    bases: dict[str, object] = {}
    everything = []
    for folder in folders:
        result = lint(LintRequest((folder,)))
        rules = Counter(one.rule for one in result.findings)
        bases[Path(folder).name] = {
            "files": result.files,
            "lines": result.lines,
            "findings": len(result.findings),
            "rules": dict(rules.most_common()),
        }
        everything += [f"{one.file}:{one.line}: {one.rule}: {one.code}" for one in result.findings]
    sample = random.Random(0).sample(everything, min(_SAMPLE, len(everything)))
    return {"bases": bases, "seconds": round(time.monotonic() - began, 1), "sample": sorted(sample)}


def main() -> None:
    """Measure, print, and keep what was measured of the planted programs."""
    if sys.argv[1:2] == ["causes"]:
        found = named_causes()
        (RESULTS / "lint-causes.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    elif sys.argv[1:2] == ["catalogue"]:
        found = catalogue()
        (RESULTS / "lint-catalogue.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    else:
        found = found_in(sys.argv[2:])
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
