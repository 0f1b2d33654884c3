"""Every measured number in the documents has a date, and every limit agrees with the code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from determinism.types import NO_DIGEST

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "determinism"
RESULTS = ROOT / "benchmarks" / "results"
GENERATED = {
    "api", "formulas", "history", "known-settings", "messages", "myths", "ops-jax", "ops-libraries", "ops-python", "ops-pytorch",
    "ops-tensorflow", "patches-pytorch", "settings",
}  # fmt: skip
"""Pages that scripts write from dated data, or that contain no measured numbers."""
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in GENERATED)]

DATE = re.compile(r"\b20\d\d-\d\d(-\d\d)?\b")
MEASURED = re.compile(
    r"(?<![\w.,#-])\d[\d.,]*(?: (?:to|of) \d[\d.,]*)? ?"
    r"(?:ms|s|milliseconds?|microseconds?|seconds?|minutes?|hours?|%|times|[KMG]i?B(?:/s)?|runs|results|pairs)\b"
)
SMALL_NUMBERS = {1: "a", 5: "five"}


def constant(module: str, name: str) -> Any:
    """A constant of a module of the package, which is not imported: it may need a framework."""
    for node in ast.parse((PACKAGE / module).read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            names = [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]
            if name in names and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                value = eval(compile(ast.Expression(node.value), module, "eval"), {"__builtins__": {}})
                return value[names.index(name)] if isinstance(target, ast.Tuple) else value
    raise AssertionError(f"{module} has no constant {name}")


def size(count: float) -> str:
    """Bytes as the documents write them."""
    for unit, width in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << width:
            return f"{count / (1 << width):g} {unit}"
    return f"{count:g} bytes"


def limits() -> list[tuple[str, str]]:
    """Pages and their statements, with the numbers from the code."""
    digests = "frameworks/torch/device_digests/"
    entries = constant(digests + "__init__.py", "BATCHES") * constant(digests + "__init__.py", "ENTRIES")
    row = len(NO_DIGEST) + 8 * constant(digests + "kernel.py", "COLUMNS")
    copied = constant("frameworks/torch/tensor_bytes.py", "MOST_COPIED")
    blocks = constant("frameworks/torch/tensor_bytes.py", "MOST_BLOCKS")
    step = constant("probes/sources/clock.py", "_STEP_NS") // 10**6
    decoded, ratio = constant("trace/schema.py", "MOST_BATCH_BYTES"), constant("trace/stream.py", "_MOST_RATIO")
    least, most = (
        constant("launch/further_runs.py", "_LEAST_BUDGET"),
        constant("launch/further_runs.py", "_MOST_BUDGET"),
    )
    spool = constant("trace/spool.py", "_MOST_BYTES")
    assert (
        spool == constant("trace/stream.py", "_MOST_PENDING_BYTES") == constant("trace/kept_values.py", "_MOST_BYTES")
    )
    return [
        ("batch-invariance.md", f"take more than {size(constant('trace/row_calls.py', '_MOST_BYTES'))}"),
        ("causes.md", f"({constant('launch/further_runs.py', '_BUDGET_RUNS')} runs by"),
        ("causes.md", f"at least {'one minute' if least == 60 else least} and at most {most / 60:g}"),
        ("command-line.md", f"[default: {constant('launch/further_runs.py', '_BUDGET_RUNS')} runs, {least / 60:g} to {most / 60:g}"),
        (
            "command-line.md",
            f"{SMALL_NUMBERS[constant('launch/further_runs.py', '_SECONDS') / 60]} minute more than "
            f"{SMALL_NUMBERS[constant('launch/further_runs.py', '_TIMES_AS_LONG')]} times what",
        ),
        ("causes.md", f"advances by {step} milliseconds"),
        ("sources.md", f"advances by {step} milliseconds"),
        ("sources.md", f"the first {constant('run_spec.py', 'FIRST_NOTED')} uses are noted"),
        ("recording-on-gpus.md", f"When {constant(digests + '__init__.py', 'ENTRIES')} slots are used"),
        (
            "recording-on-gpus.md",
            f"{entries:,} digests are on their way, or {constant('trace/writer.py', '_RECORD_CAPACITIES')[0]:,} records",
        ),
        ("recording-on-gpus.md", f"{size(entries * row)} of slots and tables"),
        ("recording-on-gpus.md", f"about {size(2 * copied)} at a time"),
        ("recording-on-gpus.md", f"larger than {size(copied)} is copied"),
        ("recording-on-gpus.md", f"beyond {size(copied // 2 * (blocks // 2))} the parts grow"),
        ("report.md", f"Tensors beyond {size(constant('diagnose/confirm.py', 'MOST_BYTES'))}"),
        ("report.md", f"than {constant('comparison/divergence.py', 'MOST_ENTRIES'):,} steps"),
        ("trace-format.md", f"there are {constant('trace/writer.py', '_ROWS_WORTH_A_BATCH'):,} records"),
        ("trace-format.md", f"At most {constant('trace/kept_values.py', 'MOST_NUMBERS')} rows a step"),
        ("trace-format.md", f"| JSON document | {size(constant('trace/files.py', 'MOST_DOCUMENT_BYTES'))} |"),
        ("trace-format.md", f"{constant('trace/stream.py', 'MOST_ROWS'):,} records, {size(decoded)} decompressed"),
        ("trace-format.md", f"{size(decoded)} decompressed a batch, and all together {size(decoded)} more than {ratio} times"),
        ("trace-format.md", f"`records.spool`, `names.pending`, `numbers.bin` | {size(spool)}; more is not read"),
    ]  # fmt: skip


GOALS = (
    ("recording-on-gpus.md", "digest of tensors of 64 MiB and more: at least 90 % of the rate at which a copy reads"),
)
"""Goals, which were not measured."""


def text_of(page: str) -> str:
    """A page by its name."""
    (path,) = [path for path in PAGES if path.name == page]
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "wanted"), limits())
def test_a_limit_in_a_document_agrees_with_the_code(page: str, wanted: str) -> None:
    assert wanted in " ".join(text_of(page).split())


def sections(text: str) -> list[str]:
    """The parts of a page between its headings, without blocks of code, which contain examples."""
    plain = re.sub(r"^(```+).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.split(r"^(?=#+ )", plain, flags=re.MULTILINE)


def undated(text: str, known: list[str]) -> list[str]:
    """The measured numbers of a page whose section has no date."""
    found = []
    for section in sections(text):
        line = " ".join(re.sub(r"`[^`]*`", "", section).split())
        for one in known:
            line = line.replace(" ".join(re.sub(r"`[^`]*`", "", one).split()), "")
        found += (
            [] if DATE.search(line) else [line[max(0, m.start() - 30) : m.end() + 20] for m in MEASURED.finditer(line)]
        )
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_measured_numbers_have_a_date(path: Path) -> None:
    known = [wanted for page, wanted in (*limits(), *GOALS) if page == path.name]

    assert undated(path.read_text(encoding="utf-8"), known) == []


def test_a_number_without_a_date_is_found() -> None:
    text = "# One\n\nIt takes 150 milliseconds.\n\n# Two\n\nIt took 3 s (2026-11-23).\n\n```\n5 s\n```\n"

    assert undated(text, []) == ["# One It takes 150 milliseconds."]
    assert undated(text, ["takes 150 milliseconds"]) == []


def ratios(title: str, *files: str) -> list[float]:
    """The costs of a contender in the results of the given files, sorted."""
    rows = [row for name in files for row in json.loads((RESULTS / name).read_text(encoding="utf-8"))["results"]]
    return sorted(round(median(row["ratios"]), 1) for row in rows if row["title"] == title)


def test_the_cost_in_the_readme_agrees_with_the_benchmarks() -> None:
    (small, large), (old_small, old_large) = (
        [
            ratios(
                f"determinism, level op, {recorder} recorder",
                *(f"overhead-{part}{model}.json" for part in ("", "native-")),
            )
            for model in ("1M", "12M")
        ]
        for recorder in ("native", "python")
    )

    said = " ".join(text_of("README.md").split())
    assert large[0] == large[1] and old_large[0] == old_large[1]
    assert (
        f"{small[0]} to {small[1]} times the CPU time for a GPT of 1 M parameters and {large[0]} times for 12 M" in said
    )
    assert f"{old_small[0]} to {old_small[1]} and {old_large[0]}." in said
    agents = ratios("determinism, level op, native recorder", "overhead-agents.json")
    assert f"{agents[0]} to {agents[-1]} times for reinforcement learning with tiny networks" in said
