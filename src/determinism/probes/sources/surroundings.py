"""A program's surroundings: directory order, hashes, memory, the machine, processes, programs, databases, training options."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from determinism.digest import digest_bytes, digest_text
from determinism.factors.simple import Entries
from determinism.probes.runtime import (
    ANSWERS,
    FIRST_USES,
    SET_ORDER,
    Function,
    SourceFunction,
    Use,
    answer_text,
    elements_of,
    functions,
    in_fixed_order,
    in_order,
    replacing,
    stable_text,
)
from determinism.process_name import own_name

# Values that depend on hashes and addresses: `hash`, `id`, and the element that `set.pop` takes.

HASH = "hash"
IDENTITY = "id"

_NUMBERS = (int, float, complex, bool, type(None))
_addresses: dict[int, int] = {}
_next_address = itertools.count(1)


def _hashed(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    value = arguments[0]
    if use.is_fixed and type(value) not in _NUMBERS:
        text = stable_text(value)
        number = FIRST_USES.use(value) if text is None else None
        if text is not None or number is not None:
            digest = digest_text(f"object:{number}" if text is None else text)
            result = int.from_bytes(digest[:8], "big") % sys.hash_info.modulus
    use.note(lambda: str(result))
    return result


def _identified(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result = _numbered(arguments[0], result)
    use.note(lambda: str(result))
    return result


def _numbered(value: Any, address: int) -> int:
    """The number of an object by its first use: even, or odd where only its address distinguishes it from others.

    An even number is never reused with an address: which objects get the address of another differs from run to run.
    """
    number = FIRST_USES.use(value)
    if number is not None:
        return 2 * (number + 1)
    known = _addresses.get(address)
    if known is None:
        known = _addresses[address] = next(_next_address)
    return 2 * known - 1


def _popped(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    elements = function.__self__  # type: ignore[attr-defined]
    if not use.is_fixed or not elements:
        result = function(*arguments, **keywords)
    else:
        result = in_order(elements)[0]
        elements.remove(result)
    use.note(lambda: stable_text(result), elements=lambda: elements_of([result]).value)
    return result


HASH_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(HASH, _hashed, "builtins", "hash"),
    *functions(IDENTITY, _identified, "builtins", "id"),
    SourceFunction(SET_ORDER, "builtins", "set.pop", _popped),
)


LISTING = "listing"


def _as_is(value: Any) -> Any:
    return value


def _name(entry: Any) -> str:
    return str(getattr(entry, "name", entry))


def _settled(use: Use, found: list[Any], key: Callable[[Any], Any] = _as_is) -> list[Any]:
    """A listing as the program gets it; noted, unless the program ignores its order."""
    if use.is_unordered:
        return found
    if use.is_fixed:
        found = sorted(found, key=key)
    use.note(lambda: "\n".join(_name(entry) for entry in found))
    return found


def _whole(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _settled(use, function(*arguments, **keywords))


def _one_by_one(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    return _later(use, function(*arguments, **keywords))


def _later(use: Use, found: Iterable[Any]) -> Iterator[Any]:
    yield from _settled(use, list(found))


def _scanned(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    with function(*arguments, **keywords) as entries:
        found = list(entries)
    return Entries(_settled(use, found, _name))


def _walked(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    return _each_folder(use, function(*arguments, **keywords))


def _each_folder(use: Use, folders: Iterable[Any]) -> Iterator[Any]:
    for found in folders:
        # Sorted in place, since the walk continues through the list of folders.
        names, files = found[1], found[2]
        if use.is_fixed:
            names.sort()
            files.sort()
        if not use.is_unordered:
            use.note(lambda parts=(*names, "", *files): "\n".join(map(os.fsdecode, parts)))  # type: ignore[misc]
        yield found


LISTING_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(LISTING, _whole, "os", "listdir"),
    *functions(LISTING, _scanned, "os", "scandir"),
    *functions(LISTING, _walked, "os", "walk fwalk"),
    *functions(LISTING, _whole, "glob", "glob"),
    *functions(LISTING, _one_by_one, "glob", "iglob"),
    *functions(LISTING, _one_by_one, "pathlib", "Path.iterdir Path.glob Path.rglob"),
    *functions(LISTING, _walked, "pathlib", "Path.walk"),
)


# How busy the machine is, and what a process has used of it. Fixed, each number is the same everywhere.

MACHINE = "machine-state"

_BYTES = 1 << 33
"""Replaces every integer: most are bytes of memory, and a program that sees too few behaves differently."""


def _constant(value: Any) -> Any:
    """A value of the same types, whose numbers are the same in every run."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return type(value)(_BYTES if isinstance(value, int) else 1)
    if isinstance(value, tuple):
        parts = [_constant(part) for part in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, list):
        return [_constant(part) for part in value]
    if isinstance(value, dict):
        return {key: _constant(part) for key, part in value.items()}
    return value


_machine_state = replacing(_constant)

MACHINE_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(MACHINE, _machine_state, "os", "getloadavg times"),
    *functions(MACHINE, _machine_state, "resource", "getrusage"),
    *functions(
        MACHINE, _machine_state, "psutil",
        "cpu_percent cpu_times cpu_times_percent cpu_freq cpu_stats getloadavg"
        " virtual_memory swap_memory disk_io_counters net_io_counters boot_time"
        " Process.cpu_percent Process.cpu_times Process.memory_info Process.memory_percent"
        " Process.memory_full_info Process.num_threads Process.create_time",
    ),
)  # fmt: skip


# Uninitialized arrays: they hold what was in memory before. Fixed, they hold zeros.

MEMORY = "uninitialized-array"

_MOST_BYTES = 1 << 20


def _filled(array: Any) -> Any:
    array.fill(0)
    return array


def _bytes_text(array: Any) -> str | None:
    if array.dtype.hasobject or array.nbytes > _MOST_BYTES:
        return None
    return f"memory {digest_bytes(array.tobytes()).hex()}"


def _tensor(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Not noted, since the recorder itself sees what tensors hold, and whether it is read."""
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result.detach().zero_()
    return result


MEMORY_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(MEMORY, replacing(_filled, _bytes_text), "numpy", "empty empty_like"),
    *functions(MEMORY, _tensor, "torch", "empty empty_like empty_strided Tensor.new_empty"),
)


# Numbers that the system assigns to processes and threads. Fixed, they are numbers that no process can have.

PROCESS = "process-id"

_ABOVE_ALL = 1 << 30
"""Linux assigns numbers up to 2**22 (proc(5), `pid_max`), so a signal to one of these reaches no process."""
_threads: dict[int, int] = {}


def _process(name: str) -> int:
    return _ABOVE_ALL + int.from_bytes(digest_text(name)[:2], "big")


def _thread(_: int) -> int:
    return _ABOVE_ALL + _threads.setdefault(threading.get_ident(), len(_threads))


PROCESS_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(PROCESS, replacing(lambda _: _process(own_name("") or "main")), "os", "getpid"),
    *functions(PROCESS, replacing(lambda _: _process("parent")), "os", "getppid"),
    *functions(PROCESS, replacing(_thread), "threading", "get_ident get_native_id"),
)


# Output of other programs. Fixed, its lines are sorted. Notes never hold it, only a digest, for comparing the same command.

PROGRAM = "program-output"


def _asked(question: Any) -> dict[str, Any]:
    """The fields to note about a question: a digest that identifies it in another run."""
    try:
        text = stable_text(question)
    except Exception:
        text = None
    return {"asked": None if text is None else digest_text(text).hex()}


def _asked_program(command: Any, given: Any) -> dict[str, Any]:
    """The fields to note about a command and its input: a digest of both, and the name of the program."""
    try:
        words = command.split() if isinstance(command, str | bytes) else list(command)
        name = os.path.basename(os.fsdecode(words[0]))
    except (TypeError, ValueError, IndexError):
        words, name = [command], ""
    return {**_asked((words, given)), "program": name}


def _printed(use: Use, command: Any, given: Any, output: Any) -> Any:
    """The output of a program as its caller gets it; None if it was not captured."""
    if output is None:
        return None
    if use.is_fixed:
        output = in_fixed_order(output)
    use.note(lambda: answer_text(output), **_asked_program(command, given))
    return output


def _run(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    name = "stderr" if result.stdout is None else "stdout"
    setattr(result, name, _printed(use, result.args, keywords.get("input"), getattr(result, name)))
    return result


def _output(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    command = arguments[0] if arguments else keywords.get("args", keywords.get("cmd", ()))
    if isinstance(result, tuple):
        return (result[0], _printed(use, command, None, result[1]))
    return _printed(use, command, keywords.get("input"), result)


def _started(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`Popen` and `os.popen`: the output arrives while the program continues, and is noted when it is read."""
    result = function(*arguments, **keywords)
    process: Any = getattr(result, "_proc", result)
    if process.stdin is None and process.stdout is not None:
        details = _asked_program(process.args, None)
        for giver in (result, process.stdout):
            ANSWERS.expect(giver, use, details)
    return result


def _communicated(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    process: Any = function.__self__  # type: ignore[attr-defined]
    output, errors = function(*arguments, **keywords)
    given = arguments[0] if arguments else keywords.get("input")
    use = ANSWERS.asked[process][0] if process in ANSWERS.asked else use
    return _printed(use, process.args, given, output), errors


def _read(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Part or all of an answer, noted at the line that asked."""
    answer = function(*arguments, **keywords)
    asked = ANSWERS.asked.get(function.__self__)  # type: ignore[attr-defined]
    if asked is None:
        return answer
    asking, details = asked
    if asking.is_fixed:
        answer = in_fixed_order(answer)
    told = sorted(answer, key=repr) if use.is_unordered and isinstance(answer, list) else answer
    asking.note(lambda: answer_text(told), **details)
    return answer


PROGRAM_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(PROGRAM, _run, "subprocess", "run"),
    *functions(PROGRAM, _output, "subprocess", "check_output getoutput getstatusoutput"),
    *functions(PROGRAM, _started, "subprocess", "Popen"),
    *functions(PROGRAM, _communicated, "subprocess", "Popen.communicate"),
    *functions(PROGRAM, _started, "os", "popen"),
    *functions(PROGRAM, _read, "io", "TextIOWrapper.read TextIOWrapper.readline TextIOWrapper.readlines", ANSWERS.asked),
    *functions(PROGRAM, _read, "io", "BufferedReader.read BufferedReader.readline BufferedReader.readlines", ANSWERS.asked),
)  # fmt: skip


# Rows from a database. Fixed, SQLite draws the same random numbers in each run, and rows fetched together are sorted.

QUERY = "query-result"

_SEED = 0


def _queried(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A query; its rows are noted when they are fetched."""
    holder: Any = function.__self__  # type: ignore[attr-defined]
    if use.is_fixed:
        _draw_alike(getattr(holder, "connection", holder))
    cursor = function(*arguments, **keywords)
    ANSWERS.expect(cursor, use, _asked((arguments, keywords)))
    return cursor


def _draw_alike(connection: Any) -> None:
    """Make a connection of SQLite draw from a generator with a fixed seed."""
    # Not imported before the program does: its folder may have a module of the same name.
    generator = import_module("random").Random(_SEED)
    try:
        connection.create_function("random", 0, lambda: generator.getrandbits(63))
    except Exception:
        # Another query on the connection has not returned all its rows yet.
        return


def _table(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`pandas.read_sql`: all rows of a query at once, as a table."""
    named = dict(zip(("sql", "con"), arguments, strict=False)) | keywords
    if use.is_fixed:
        _draw_alike(named.get("con"))
    result = function(*arguments, **keywords)
    if hasattr(result, "values"):
        use.note(lambda: answer_text(result.values.tolist()), **_asked(named.get("sql")))
    return result


QUERY_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(QUERY, _queried, "sqlite3", "Connection.execute Cursor.execute"),
    *functions(QUERY, _read, "sqlite3", "Cursor.fetchall Cursor.fetchone Cursor.fetchmany", ANSWERS.asked),
    *functions(QUERY, _table, "pandas", "read_sql read_sql_query read_sql_table"),
)


# Options with which a training loop gives up an order or a state. Fixed, it keeps them.

CHECKPOINT = "checkpoint-rng"
LOADER = "loader-order"
PIPELINE = "pipeline-order"


def _choosing(name: str) -> Callable[[Use, Function, tuple[Any, ...], dict[str, Any]], Any]:
    """A handler for functions that give up an order or a state if this argument is False."""

    def called(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        place = _place_of(name, function)
        is_positional = place is not None and place < len(arguments)
        chosen = arguments[place] if is_positional and place is not None else keywords.get(name, True)
        if chosen is None or chosen:
            return function(*arguments, **keywords)
        if not use.is_fixed:
            use.note(lambda: None)
        elif is_positional and place is not None:
            arguments = (*arguments[:place], True, *arguments[place + 1 :])
        else:
            keywords = {**keywords, name: True}
        return function(*arguments, **keywords)

    return called


def _place_of(name: str, function: Function) -> int | None:
    """The position of a parameter among the arguments of a call; None if it is unknown."""
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_varnames[: code.co_argcount]:
        return None
    return int(code.co_varnames.index(name)) - hasattr(function, "__self__")


def _with_options(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`Dataset.with_options`: the options may allow elements in any order."""
    options: Any = arguments[0] if arguments else keywords.get("options")
    if options is None or options.deterministic is not False:
        return function(*arguments, **keywords)
    if not use.is_fixed:
        use.note(lambda: None)
        return function(*arguments, **keywords)
    ordered = type(options)()
    ordered.deterministic = True
    return function(options.merge(ordered))


TRAINING_FUNCTIONS: tuple[SourceFunction, ...] = (
    *functions(
        CHECKPOINT, _choosing("preserve_rng_state"), "torch.utils.checkpoint", "checkpoint checkpoint_sequential"
    ),
    *functions(LOADER, _choosing("in_order"), "torch.utils.data.dataloader", "DataLoader DataLoader.__init__"),
    *functions(
        PIPELINE,
        _choosing("deterministic"),
        "tensorflow",
        "data.Dataset.map data.Dataset.interleave data.Dataset.batch data.Dataset.padded_batch data.Dataset.ragged_batch",
    ),
    *functions(PIPELINE, _with_options, "tensorflow", "data.Dataset.with_options"),
)
