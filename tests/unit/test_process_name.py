"""Children without a name of their own are told apart by the order in which they were forked."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def printed(program: str) -> list[str]:
    start = """
        import multiprocessing, os, sys
        from determinism.process_name import own_name

        def fork(work):
            if os.fork() == 0:
                work()
                sys.stdout.flush()
                os._exit(0)

        def tell():
            os.write(1, f"{own_name('main')}\\n".encode())

        multiprocessing.set_start_method("fork")
    """
    text = textwrap.dedent(start) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()


def test_forked_children_are_numbered_by_their_forks_and_not_by_who_comes_first() -> None:
    assert printed("""
        tell()
        read, write = os.pipe()
        fork(lambda: (os.read(read, 1), tell()))
        fork(lambda: (tell(), os.write(write, b"x")))
        os.wait(), os.wait()
    """) == ["None", "fork-2", "fork-1"]


def test_grandchildren_are_told_apart_though_nothing_lies_between() -> None:
    assert printed("""
        def parent():
            fork(tell)
            os.wait()
        for _ in range(2):
            fork(parent)
            os.wait()
    """) == ["fork-1-1", "fork-2-1"]


def test_multiprocessing_names_its_own_children_only() -> None:
    assert printed("""
        def parent():
            tell()
            fork(tell)
            os.wait()
        process = multiprocessing.Process(target=parent, name="by name")
        process.start()
        process.join()
    """) == ["by-name", "fork-1-1"]
