"""Runs the tests with each of the old TensorFlow versions, each in an environment of its own, under Python 3.7.

    python run_tests.py [VERSION ...]

The environments lie in `.venvs` beside this file, and are made again when their requirements change. The package is
installed from a wheel that is built anew. Where there is no Python 3.7 nothing is run, and that is said; name one in the
variable PYTHON37 if it is not on the path.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "tests" / "requirements"
ENVIRONMENTS = HERE / ".venvs"
VERSIONS = sorted(
    (path.stem for path in REQUIREMENTS.glob("*.txt")), key=lambda text: [int(n) for n in text.split(".")]
)


def main(versions):
    """Runs the tests of these versions, all if none is named; gives the exit status."""
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown:
        print("No requirements for {}; there are: {}.".format(", ".join(unknown), ", ".join(VERSIONS)), file=sys.stderr)
        return 2
    python = find_python37()
    if python is None:
        print(
            "tensorflow-determinism: NOT TESTED. The old versions of TensorFlow need Python 3.7, and there is none here:"
        )
        print("neither python3.7 on the path, nor one of pyenv's; name one with PYTHON37=/path/to/python3.7.")
        return 0
    chosen = versions or VERSIONS
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=1) as maker:
        package = install_package(python, Path(folder))
        check_other_pythons(package)
        # While the tests of one version run, the environment of the next is made.
        environments = [maker.submit(environment, python, version) for version in chosen]
        failed = [version for version, made in zip(chosen, environments) if run(version, made.result(), package) != 0]
    print("tensorflow-determinism: {}".format("failed with " + ", ".join(failed) if failed else "all versions passed."))
    return 1 if failed else 0


def find_python37():
    """A Python 3.7 that runs, or None."""
    candidates = [os.environ.get("PYTHON37"), shutil.which("python3.7")]
    roots = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv")]
    for root in filter(None, roots):
        candidates += [str(path) for path in sorted(Path(root).glob("versions/3.7.*/bin/python3.7"))]
    for candidate in filter(None, candidates):
        if runs(candidate, "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 7))"):
            return candidate
    return None


def runs(python, code, **variables):
    """Whether this Python runs the code and is content."""
    try:
        done = subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL, env=dict(os.environ, **variables))
    except OSError:
        return False
    return done.returncode == 0


def install_package(python, folder):
    """The package, built and installed as a user would, into a folder of its own, without any TensorFlow."""
    target = folder / "package"
    # A build leaves files beside what it builds.
    source = folder / "source"
    shutil.copytree(
        str(HERE), str(source), ignore=shutil.ignore_patterns(".venvs", "build", "*.egg-info", "__pycache__")
    )
    subprocess.run([*pip(python), "install", "--target", str(target), "--no-deps", str(source)], check=True)
    return target


def check_other_pythons(package):
    """Imports the package with the other Pythons it is for, if they are here; it says what is missing: TensorFlow."""
    code = "import tfdeterminism\ntry: tfdeterminism.enable_determinism()\nexcept ImportError as e: assert '1.14 to 2.7' in str(e)"
    for minor in (6, 8, 9):
        pythons = sorted(Path(os.path.expanduser("~/.pyenv/versions")).glob("3.{0}.*/bin/python3.{0}".format(minor)))
        for python in [str(path) for path in pythons[-1:]]:
            if not runs(python, code, PYTHONPATH=str(package)):
                raise SystemExit("tfdeterminism cannot be imported with {}.".format(python))
            print("tfdeterminism is imported by Python 3.{} too.".format(minor))


def environment(python, version):
    """The Python of the environment for a version of TensorFlow, which is made if its requirements are new."""
    requirements = REQUIREMENTS / (version + ".txt")
    folder = ENVIRONMENTS / version
    stamp = folder / "installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        start = time.time()
        shutil.rmtree(str(folder), ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        install = [
            *pip(str(folder / "bin" / "python")),
            "install",
            "--no-deps",
            "--no-compile",
            "-r",
            str(requirements),
        ]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
        print("Made the environment of TensorFlow {} in {:.0f} s.".format(version, time.time() - start), flush=True)
    return str(folder / "bin" / "python")


def pip(python):
    """How to call the pip of this Python quietly."""
    return [python, "-m", "pip", "-qq", "--disable-pip-version-check"]


def run(version, python, package):
    """Runs the tests with one version; gives pytest's exit status."""
    start = time.time()
    variables = dict(os.environ, PYTHONPATH=str(package), PYTHONDONTWRITEBYTECODE="")
    for name in [name for name in variables if re.match("TF_|NVIDIA_TENSORFLOW", name)]:
        del variables[name]
    command = [python, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "tests")]
    status = subprocess.run(command, cwd=str(HERE), env=variables).returncode
    print("TensorFlow {}: tests took {:.0f} s.".format(version, time.time() - start), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
