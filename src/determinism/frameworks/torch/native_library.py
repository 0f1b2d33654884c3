"""Finds the native library that records below Python, or builds it once with the installed compiler.

It is built for one version of PyTorch and of Python, and stored in the package or in the user's cache. Its name holds both
versions and a digest of its sources, so a library built for others is never loaded. Nothing here imports PyTorch before
the library is loaded. Run as a module, this builds it; the launcher does so with `prepare` before it starts a program.
"""

from __future__ import annotations

import fcntl
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from determinism.compile_caches import own_cache
from determinism.digest import digest_bytes, digest_many
from determinism.run_spec import RECORDER_VARIABLE, recorder_choice

MODULE = "_determinism_observer"
_HERE = Path(__file__).parent / "native"
_SOURCES = ("*.c", "*.cpp", "*.h")
_INSTRUCTIONS = {"base": (), "avx2": ("-mavx2",), "avx512": ("-mavx512f",)}
"""Instruction sets that the digest is compiled for, with the compiler's options; the first one runs everywhere."""
TESTED = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14")
"""Minor versions of PyTorch whose native recording was tested, on x86-64; with others, it must be requested."""
TESTED_PYTHON = ("3.11", "3.12", "3.13")
"""Tested minor versions of Python, each with at least one version of PyTorch."""
_X86_64 = ("x86_64", "AMD64")
_UNTESTED_DEVICES = {"hip": ("kfd",), "xpu": ("dri/renderD*",)}
"""Device files in `/dev` of the AMD and Intel GPUs that some PyTorch builds drive; NVIDIA GPUs were tested."""
_DEVICE_FILES = Path("/dev")
_SECONDS = 600.0
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-w")
"""Without `NDEBUG`, PyTorch's headers assert fields that its library never sets."""


class NotNative(Exception):
    """This process cannot be recorded natively, for the given reason."""


class BuildFailed(NotNative):
    """The compiler was run and failed."""


class _PyTorch(NamedTuple):
    """The PyTorch that this interpreter would import."""

    root: Path
    version: str
    git: str
    drives: tuple[str, ...]
    """The untested kinds of GPUs that it was built for."""


class _Tools(NamedTuple):
    """The tools and headers that the library is built with."""

    compiler: str
    pytorch: Path
    python: str
    """The folder of Python's headers."""
    xxhash: Path


def check_tested() -> None:
    """Reject the native recorder where it was not tested; there it is used only if requested explicitly.

    Raises:
        NotNative: It was not tested with this PyTorch, this Python or this processor, or there is an AMD or Intel GPU.
    """
    torch = _pytorch()
    asked = f"{RECORDER_VARIABLE}=native chooses it anyway"
    python = platform.python_version()
    is_tested = _minor(torch.version) in TESTED and _minor(python) in TESTED_PYTHON
    if not is_tested or platform.machine() not in _X86_64:
        raise NotNative(
            f"the native one was tested on x86-64 with PyTorch {TESTED[0]} to {TESTED[-1]} and Python {TESTED_PYTHON[0]} to "
            f"{TESTED_PYTHON[-1]}, and this is PyTorch {torch.version} and Python {python} on {platform.machine()}; {asked}"
        )
    patterns = [pattern for kind in torch.drives for pattern in _UNTESTED_DEVICES[kind]]
    if any(next(_DEVICE_FILES.glob(pattern), None) for pattern in patterns):
        raise NotNative(
            f"the native one was not tested with GPUs of AMD and Intel, and PyTorch may use one here; {asked}"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def load() -> Any:
    """Load the library into this process.

    Raises:
        NotNative: There is no suitable library.
    """
    path = find()
    if path is None:
        _check_buildable()
        raise NotNative(
            f"it has not been built for PyTorch {_pytorch().version} and Python {platform.python_version()}; "
            f"{sys.executable} -m {__name__} builds it"
        )
    return _loaded(path)


@cache
def _loaded(path: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    try:
        library = importlib.util.module_from_spec(spec)
        loader.exec_module(library)
    except ImportError as error:
        raise NotNative(f"{path} cannot be loaded: {error}") from error
    if library.built_for != _built_for():
        raise NotNative(f"{path} was built for {library.built_for}, and this is {_built_for()}")
    sample = bytes(range(256)) * 5
    if library.digest(sample) != digest_bytes(sample):
        raise NotNative(f"{path} computes different digests than the xxhash package")
    return library


def find() -> Path | None:
    """Find the library for this interpreter; None if it has not been built yet.

    Raises:
        NotNative: There can be none, as PyTorch is not installed.
    """
    for path in (_HERE / "built" / f"{_key()}.so", _folder() / f"{_key()}.so"):
        if path.is_file() and _is_trusted(path):
            return path
    return None


def build(say: Callable[[str], None], into: Path | None = None, *, again: bool = True) -> Path:
    """Build the library for this interpreter, unless it already exists.

    Args:
        say: Called with lines about the progress.
        into: The folder for it, from which libraries of other sources are removed; by default, one in the user's cache.
        again: Whether to retry a build that failed before with the same compiler.

    Returns:
        Its path.

    Raises:
        NotNative: It cannot be built here.
    """
    if into is None and (known := find()) is not None:
        return known
    tools = _tools()
    folder = into or _folder()
    if not again:
        _check_failure(folder, tools)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            if into is None and (known := find()) is not None:
                # Another process built it meanwhile.
                return known
            if not again:
                _check_failure(folder, tools)
            say(
                f"Building the native recorder for PyTorch {_pytorch().version}; this happens once and takes about "
                "half a minute ..."
            )
            begun = time.monotonic()
            made = _compile(Path(scratch), tools, say)
            target = folder / f"{_key()}.so"
            os.chmod(made, 0o600)
            os.replace(made, target)
            if into is not None:
                # Libraries for other versions of PyTorch and Python stay; those of other sources would never be loaded.
                for other in set(folder.glob("*.so")) - set(folder.glob(f"*-{_sources()}.so")):
                    other.unlink()
            _failure_file(folder).unlink(missing_ok=True)
            say(f"Built it in {time.monotonic() - begun:.0f} s: {target}")
            return target
    except BuildFailed as failure:
        with suppress(OSError):
            _failure_file(folder).write_text(f"{tools.compiler}\n{failure}", encoding="utf-8")
        raise
    except OSError as error:
        raise NotNative(f"{folder} cannot be written: {error}") from error


def _failure_file(folder: Path) -> Path:
    """Return the file with the compiler's last error, so that a failed build is not retried at each program start."""
    return folder / f"{_key()}.failed"


def _check_failure(folder: Path, tools: _Tools) -> None:
    try:
        compiler, _, reason = _failure_file(folder).read_text(encoding="utf-8", errors="replace").partition("\n")
    except OSError:
        return
    if compiler == tools.compiler:
        raise NotNative(f"{reason}; {sys.executable} -m {__name__} tries again")


def _check_buildable() -> None:
    """Raise the reason why the library cannot be built here, if it is known without trying."""
    folder = _folder()
    _check_failure(folder, _tools())
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise NotNative(f"{there} cannot be written")


def _tools() -> _Tools:
    """Find what is needed to build the library."""
    if sys.platform != "linux":
        raise NotNative(f"it is built on Linux only, and this is {sys.platform}")
    if sys.implementation.name != "cpython":
        raise NotNative(f"it is built for CPython only, and this is {sys.implementation.name}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotNative("it relies on the global interpreter lock, which this Python does not have")
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        raise NotNative("no C++ compiler was found (g++, c++ or clang++; the variable CXX names another one)")
    root = _pytorch().root
    python = sysconfig.get_path("include")
    if not (Path(python) / "Python.h").is_file():
        raise NotNative(f"the headers of Python are missing in {python}; install the package python3-dev")
    if not (root / "include" / "ATen" / "record_function.h").is_file():
        raise NotNative(f"this PyTorch has no headers in {root / 'include'}")
    return _Tools(compiler, root, python, xxhash_headers())


def _compile(folder: Path, tools: _Tools, say: Callable[[str], None]) -> Path:
    compiler, root, python, xxhash = tools
    sets = _INSTRUCTIONS if platform.machine() in _X86_64 else {"base": ()}
    objects = []
    for name, options in sets.items():
        objects.append(str(folder / f"digest-{name}.o"))
        define = f"-DDIGEST=determinism_digest_{name}"
        # Compiled as C, so that the function's name is the same with every compiler.
        _run(compiler, "-x", "c", "-O3", "-fPIC", "-DNDEBUG", "-w", *options, define, f"-I{xxhash}", "-c",
             str(_HERE / "digest.c"), "-o", objects[-1])  # fmt: skip
    built_for = _built_for()
    includes = [f"-I{root / 'include'}", f"-I{python}"]
    objects.append(str(folder / "observer.o"))
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={_string_abi(root)}"
    say(f"Compiled the digests ({len(objects) - 1} of {len(objects)} files); compiling the observer ...")
    _run(compiler, *_FLAGS, abi, f'-DBUILT_FOR="{built_for}"', *includes, "-c",
         str(_HERE / "observer.cpp"), "-o", objects[-1])  # fmt: skip
    made = folder / "made.so"
    _run(compiler, "-shared", "-o", str(made), *objects, f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10")
    return made


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"the compiler did not end within {_SECONDS:.0f} s") from None
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
        raise BuildFailed(f"{Path(command[0]).name} failed: {first}")


def xxhash_headers() -> Path:
    """Find the folder that contains `xxhash.h`, which comes with pyarrow.

    Raises:
        NotNative: This pyarrow does not include it.
    """
    spec = importlib.util.find_spec("pyarrow")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        folder = Path(place) / "include" / "arrow" / "vendored" / "xxhash"
        if (folder / "xxhash.h").is_file():
            return folder
    raise NotNative("xxhash.h is missing; it comes with the headers in pyarrow's wheels")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process build at a time; the others then find what it built."""
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        # On a file system without locks, two processes build the same file, and each renames it into place atomically.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder() -> Path:
    return own_cache() / "native"


def _is_trusted(path: Path) -> bool:
    """Whether only the user or root could have put the file there: it is code that will run."""
    if path.parent.parent == _HERE:
        return True
    for place in (path, path.parent):
        facts = os.stat(place)
        if facts.st_uid not in (os.getuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


@cache
def _key() -> str:
    return f"torch-{_pytorch().version}-{sysconfig.get_config_var('SOABI')}-{_sources()}"


@cache
def _sources() -> str:
    parts = [path.read_bytes() for pattern in _SOURCES for path in sorted(_HERE.glob(pattern))]
    return digest_many([digest_bytes(part) for part in parts]).hex()[:12]


def _built_for() -> str:
    return f"PyTorch {_pytorch().version} ({_pytorch().git[:10]}), {sysconfig.get_config_var('SOABI')}"


@cache
def _pytorch() -> _PyTorch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NotNative("PyTorch is not installed")
    root = Path(spec.origin).parent
    try:
        text = (root / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise NotNative(f"the version of PyTorch cannot be read: {error}") from error
    found = dict(re.findall(r"^(\w+)(?:: [^=\n]+)? = '([^'\n]*)'$", text, re.MULTILINE))
    if "__version__" not in found:
        raise NotNative(f"{root / 'version.py'} does not say which version of PyTorch it is")
    drives = tuple(kind for kind in _UNTESTED_DEVICES if kind in found)
    return _PyTorch(root, found["__version__"], found.get("git_version", "unknown"), drives)


def _string_abi(root: Path) -> int:
    """Find which of the two string ABIs of the C++ library PyTorch was built with; newer versions have only one."""
    # The mangled name of a constructor that takes a string shows it without importing PyTorch.
    return int(b"SourceLocationENSt7__cxx11" in (root / "lib" / "libc10.so").read_bytes())


def prepare() -> int:
    """Build the library before a program starts, if it is wanted and not built yet; returns 0 if it is available now.

    If it was not requested explicitly, only builds and their failures are printed; the report gives all other reasons.
    """
    is_asked = recorder_choice(os.environ) == "native"
    try:
        if not is_asked:
            check_tested()
        build(_say, again=is_asked)
    except NotNative as reason:
        if is_asked or isinstance(reason, BuildFailed):
            _say(f"The native recorder cannot be built: {reason}. Ops are recorded in Python, which takes longer.")
        return 3
    except KeyboardInterrupt:
        return 130
    return 0


def _say(line: str) -> None:
    print(f"determinism: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Build the library for the interpreter that runs this; the exit status is 3 if that is not possible.

    The only argument may be a folder for it; by default it is built into the user's cache, unless it already exists.
    """
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        build(_say, folder)
    except NotNative as reason:
        _say(f"The native recorder cannot be built: {reason}.")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
