"""Make the stored traces and the reports on them; for developers only.

    python -m tests.golden.make reports [NAME...]     compare the stored traces again and write the reports
    python -m tests.golden.make traces [NAME...]      record the programs again; needs the frameworks

A NAME is a family, or a family and a case, such as `kinds` or `kinds/raw_write`; the default is all of them. `traces` records the
cases that the frameworks of this Python can run, and says how many it left out.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.trace.chunks import WRITE_OPTIONS
from tests.e2e.checking import PROGRAMS, run_command
from tests.golden.cases import CASES, DOCUMENT, OUT, Case
from tests.golden.corpus import ARCHIVE, FOLDER, folder_of, reports_of

_REPOSITORY = Path(__file__).parents[2]
_TRIES = 20
_STATUS = {"same": 0, "different": 1, "inconclusive": 2}
_SAME = {
    "created": 1767225600.0,
    "started": 1767225600.0,
    "pid": 1000,
    "seconds": 1.0,
    "waited": 0.0,
    "step_seconds": None,
}
"""Facts that are different in each run, and the values that are stored instead."""
_PLATFORM = "Linux-6.12.0-x86_64-with-glibc2.36"
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases of these names and families; all if none is named."""
    found = [case for case in CASES if not names or any(f"{case.name}/".startswith(f"{name}/") for name in names)]
    if not found:
        raise SystemExit(f"No case is called {' or '.join(names)}. Families: {', '.join(sorted(_families()))}")
    return found


def _families() -> set[str]:
    return {case.name.partition("/")[0] for case in CASES}


# Reports, from stored traces.


def write_reports(case: Case) -> list[str]:
    """Write the reports on the stored traces of a case; return the names of the files that changed."""
    with tempfile.TemporaryDirectory() as folder:
        texts = reports_of(case, Path(folder))
    changed = []
    for name, text in texts.items():
        file = folder_of(case) / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            changed.append(name)
            file.write_text(text, encoding="utf-8")
    for file in folder_of(case).iterdir():
        if file.name not in (*texts, ARCHIVE, DOCUMENT):
            changed.append(file.name)
            file.unlink()
    return changed


# Traces, from programs.


def record(case: Case) -> None:
    """Record a case, and store the results without anything that names this machine."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        if case.source:
            _damage(case, Path(folder))
            return
        out, work = _recorded(case, Path(folder))
        replacements = _replacements(work)
        folder_of(case).mkdir(parents=True, exist_ok=True)
        if case.compared == "document":
            content = json.loads((out / DOCUMENT).read_text(encoding="utf-8"))
            text = json.dumps(_replaced(content, replacements), indent=1) + "\n"
            _require_clean(case, text)
            (folder_of(case) / DOCUMENT).write_text(text, encoding="utf-8")
            return
        _normalise(case, out, replacements)
        (folder_of(case) / ARCHIVE).write_bytes(_packed(out))


def _damage(case: Case, folder: Path) -> None:
    """Make a case from the stored traces of another."""
    assert case.damage is not None
    with tarfile.open(FOLDER / case.source / ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    case.damage(folder)
    folder_of(case).mkdir(parents=True, exist_ok=True)
    (folder_of(case) / ARCHIVE).write_bytes(_packed(folder))


def _recorded(case: Case, folder: Path) -> tuple[Path, Path]:
    """Run the commands of a case until they reach the expected verdict; return the folders of traces and of work."""
    for number in range(_TRIES):
        out, work = folder / f"out-{number}", folder / f"work-{number}"
        out.mkdir()
        work.mkdir()
        for command in case.commands:
            words = [word.replace(OUT, str(out)) for word in command]
            ended = run_command(work, [sys.executable, "-m", "determinism", *words], _ENVIRONMENT, patience=3600)
            if "Traceback" in ended.stderr and "determinism/cli" in ended.stderr:
                raise RuntimeError(ended.stderr)
            if command[0] == "record" and ended.returncode:
                raise RuntimeError(ended.stderr)
        if command[0] == "record" or ended.returncode == _STATUS[case.verdict]:
            return out, work
    raise RuntimeError(f"{case.name} was never {case.verdict}:\n{ended.stdout}\n{ended.stderr}")


def _replacements(work: Path) -> list[tuple[str, str]]:
    """Texts that name this machine and their replacements, the longest first."""
    packages = "/home/ada/environment/lib/python/site-packages"
    pairs = {
        str(PROGRAMS): "/home/ada/project",
        str(_REPOSITORY / "src"): packages,
        str(_REPOSITORY): "/home/ada/checkout",
        str(next(Path(sys.prefix).glob("lib/python*/site-packages"))): packages,
        sys.prefix: "/home/ada/environment",
        sys.base_prefix: "/usr",
        str(work): "/home/ada/work",
        str(work.parent): "/home/ada/traces",
        tempfile.gettempdir() + "/": "/tmp/",
        platform.platform(): _PLATFORM,
        str(Path.home()): "/home/ada",
    }
    return sorted(pairs.items(), key=lambda pair: -len(pair[0]))


def _replaced(value: Any, replacements: Sequence[tuple[str, str]]) -> Any:
    """A JSON value with replacements in all its texts, and with fixed values for facts that are different in each run."""
    if isinstance(value, dict):
        return {
            _replaced(key, replacements): _SAME[key] if key in _SAME else _replaced(item, replacements)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_replaced(item, replacements) for item in value]
    if isinstance(value, str):
        for before, after in replacements:
            value = value.replace(before, after)
    return value


def _normalise(case: Case, traces: Path, replacements: Sequence[tuple[str, str]]) -> None:
    """Remove everything from traces that names this machine, and logs and lists of opened files."""
    for file in sorted(traces.rglob("*")):
        if not file.is_file():
            continue
        if file.suffix == ".json":
            content = json.loads(file.read_text(encoding="utf-8"))
            text = json.dumps(_replaced(content, replacements), indent=1)
            _require_clean(case, text)
            file.write_text(text, encoding="utf-8")
        elif file.name == "names.arrow":
            for text in _rewrite_names(file, replacements):
                _require_clean(case, text)
        elif file.name == "names.pending":
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            file.write_text("".join(f"{json.dumps(_replaced(row, replacements))}\n" for row in rows), encoding="utf-8")
        elif file.suffix in (".log", ".jsonl"):
            file.unlink()
    for folder in traces.iterdir():
        if not folder.is_dir() or folder.name == "checkpoints":
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def _rewrite_names(file: Path, replacements: Sequence[tuple[str, str]]) -> list[str]:
    """Replace texts in the names of a trace, batch by batch, and return them; a truncated file stays truncated."""
    names: list[str] = []
    if not file.stat().st_size:
        # The process was killed before it had written any; they are in `names.pending`.
        return names
    sink = io.BytesIO()
    source = pa.ipc.open_stream(file.read_bytes())
    with pa.ipc.new_stream(sink, source.schema, options=WRITE_OPTIONS) as stream:
        for batch in _batches(source):
            position = batch.schema.get_field_index("text")
            texts = [_replaced(text, replacements) for text in batch.column(position).to_pylist()]
            stream.write_batch(batch.set_column(position, batch.schema.field(position), pa.array(texts, pa.string())))
            names += texts
    file.write_bytes(sink.getvalue())
    return names


def _batches(source: pa.ipc.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from source
    except pa.ArrowInvalid:
        return


def _require_clean(case: Case, text: str) -> None:
    """Refuse to store a text that names this machine."""
    for word in (str(_REPOSITORY), sys.prefix, str(Path.home()), platform.release()):
        if word in text:
            at = text.index(word)
            raise RuntimeError(f"{case.name} names this machine: {text[max(0, at - 200) : at + 200]}")


def _packed(folder: Path) -> bytes:
    """A reproducible archive of a folder."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            info.mode = 0o700 if path.is_dir() else 0o600
            if path.is_file():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return sink.getvalue()


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["reports", "traces"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="how many programs are recorded at once")
    options = parser.parse_intermixed_args(words)
    cases = chosen(options.names)
    failures = 0
    if options.what == "traces":
        missing = {case.framework for case in cases if find_spec(case.framework) is None}
        left_out = [case for case in cases if case.framework in missing]
        if left_out:
            print(f"Left out: {len(left_out)} cases, which need {' and '.join(sorted(missing))}")
        cases = [case for case in cases if case.framework not in missing]
        # Cases that are made from the traces of others come last.
        for group in ([case for case in cases if not case.source], [case for case in cases if case.source]):
            with ThreadPoolExecutor(options.workers) as pool:
                for case, error in zip(group, pool.map(_attempted, group), strict=True):
                    print(f"{'FAILED  ' if error else 'recorded'}  {case.name}{error}", flush=True)
                    failures += bool(error)
    for case in cases:
        if not (folder_of(case) / (DOCUMENT if case.compared == "document" else ARCHIVE)).exists():
            print(f"missing   {case.name}: make golden-traces records it", flush=True)
            failures += 1
            continue
        changed = write_reports(case)
        if changed:
            print(f"changed   {case.name}: {', '.join(changed)}", flush=True)
    return 1 if failures else 0


def _attempted(case: Case) -> str:
    try:
        record(case)
    except Exception as error:
        return f": {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
