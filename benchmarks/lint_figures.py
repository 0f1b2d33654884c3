"""Measures lint: the causes of the planted programs that it names before a run, and its findings per line of other code.

    python -m benchmarks.lint_figures causes
    python -m benchmarks.lint_figures catalogue
    python -m benchmarks.lint_figures code FOLDER...

A folder of `code` has the name of a distribution with its version, such as `timm-1.0.20`, and holds the files of its wheel.
Findings in other people's code have to be judged by hand: `lint_judged.tsv` has the judgments, by the text of the line; the
rest count as unjudged.
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

from determinism.lint.findings import Finding
from determinism.lint.run import LintRequest, Source, lint, lint_file, lint_text
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
    """Report, by class of programs, how many causes lint names, and which it does not."""
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


_BEYOND = (
    "runs are the same",
    "runs on one machine",
    "what a library does",
    "another",
    "nothing",
    "the machine",
    "what else is served",
)
"""Reasons why the program's own code does not make two runs on one machine differ."""
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
    """Report, by class of causes seen in public issues, how many lint names from the line at fault, and why not the others."""
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
    return {
        "named": len(rules),
        "known": len(rules) + len(missed),
        "beyond": sum(reason.startswith(_BEYOND) for reason in missed.values()),
        "families": families,
        "rules": rules,
        "missed": missed,
    }


def _device(cause: dict[str, Any]) -> str | None:
    device = cause.get("device")
    return None if device is None else str(device)


def _text(cause: dict[str, Any]) -> str:
    """The program of a cause; for a cause about checkpoints, one built from what it saves."""
    if "code" in cause:
        return str(cause["code"])
    state = "state = {" + ", ".join(f'"{part}": {_PARTS[part]}' for part in cause["saves"]) + "}"
    inner = f"{state}\n            torch.save(state, path)" if cause.get("inner") else state
    return _RESUMES.replace("MAKES", str(cause.get("makes", "pass"))).replace("INNER", inner)


def found_in(folders: list[str]) -> dict[str, object]:
    """How many lines and findings folders have, by rule, and a sample of the findings."""
    began = time.monotonic()
    bases: dict[str, dict[str, Any]] = {}
    everything = []
    judged = _judged()
    verdicts: Counter[str] = Counter()
    for folder in folders:
        result = lint(LintRequest((folder,)))
        base = Path(folder).name
        own = Counter(judged.get(_key(base, folder, one), "unjudged") for one in result.findings)
        verdicts += own
        rules = Counter(one.rule for one in result.findings)
        bases[Path(folder).name] = {
            "files": result.files,
            "lines": result.lines,
            "findings": len(result.findings),
            "rules": dict(rules.most_common()),
            "verdicts": dict(own),
        }
        everything += [f"{one.file}:{one.line}: {one.rule}: {one.code}" for one in result.findings]
    sample = random.Random(0).sample(everything, min(_SAMPLE, len(everything)))
    lines = sum(one["lines"] for one in bases.values())
    false = 1000 * verdicts["false"] / max(lines, 1)
    totals = {"lines": lines, "verdicts": dict(verdicts), "false per 1,000 lines": round(false, 4)}
    return {"bases": bases, **totals, "seconds": round(time.monotonic() - began, 1), "sample": sorted(sample)}


def _judged() -> dict[tuple[str, ...], str]:
    """By code base, file, rule and line, the judgment from reading the code around a finding."""
    rows = (Path(__file__).parent / "lint_judged.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return {tuple(row.split("\t")[:4]): row.split("\t")[4] for row in rows}


def _key(base: str, folder: str, finding: Finding) -> tuple[str, ...]:
    path = Path(finding.file).relative_to(folder).as_posix()
    return base, path, finding.rule, finding.code.strip().replace("\t", " ")[:100]


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
