"""The structure of the package keeps to its limits, and the measurements notice violations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house import FEWEST_LINES, LONGEST_CHAIN, LONGEST_LOADED_CHAIN, House, read_house, report

LONG = "\n".join(f"line_{number} = {number}" for number in range(FEWEST_LINES))


def house(folder: Path, **modules: str) -> House:
    """Make a package of modules with these texts, each long enough; `a__b` is `b` in the folder `a`."""
    package = folder / "lodge"
    for name, text in {"__init__": '"""A package."""', **modules}.items():
        path = package.joinpath(*name.split("__")) if not name.startswith("__") else package / name
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name.startswith("__") else f"{text}\n{LONG}\n")
    return read_house(package, short={})


@pytest.fixture(scope="module")
def package() -> House:
    return read_house()


def test_the_package_keeps_to_its_limits(package: House) -> None:
    assert list(package.broken_limits()) == []


def test_the_measurements_are_printed(package: House) -> None:
    lines = list(report(package))
    assert any(line.startswith("modules ") and str(len(package.lines())) in line for line in lines)
    assert any(line.startswith("on the way of a record") for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        "import lodge.first",
        "def later():\n    from lodge import first",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lodge.first import line_1",
    ],
)
def test_a_cycle_is_found_with_any_kind_of_import(text: str, tmp_path: Path) -> None:
    found = house(tmp_path, first="from lodge.second import line_1", second=text)
    assert found.cycles() == [["lodge.first", "lodge.second"]]
    assert any("lodge.first, lodge.second" in limit for limit in found.broken_limits())


def test_imports_in_one_direction_are_not_a_cycle(tmp_path: Path) -> None:
    found = house(tmp_path, first="import lodge.third", second="import lodge.third, lodge.first", third="import os")
    assert found.cycles() == []
    assert found.longest_chain() == ["lodge.second", "lodge.first", "lodge.third"]


def test_an_import_within_a_function_counts_but_is_not_loaded(tmp_path: Path) -> None:
    found = house(tmp_path, first="def later():\n    import lodge.second", second="import os")
    assert found.longest_chain() == ["lodge.first", "lodge.second"]
    assert len(found.longest_chain(loaded=True)) == 1
    assert found.loaded_by(["lodge.first"]) == {"lodge.first"}


def test_an_import_within_a_class_or_a_try_is_loaded(tmp_path: Path) -> None:
    found = house(
        tmp_path, first="try:\n    class One:\n        import lodge.second\nexcept ImportError:\n    pass", second=""
    )
    assert found.longest_chain(loaded=True) == ["lodge.first", "lodge.second"]


@pytest.mark.parametrize("text", ["import lodge.m{}", "def later():\n    import lodge.m{}"])
def test_a_long_chain_is_refused(text: str, tmp_path: Path) -> None:
    modules = {f"m{number}": text.format(number + 1) for number in range(LONGEST_CHAIN)}
    modules[f"m{LONGEST_CHAIN}"] = ""
    longest = house(tmp_path / "longest", **{**modules, f"m{LONGEST_CHAIN - 1}": ""})
    assert not any(f"at most {LONGEST_CHAIN} are" in limit for limit in longest.broken_limits())
    too_long = house(tmp_path / "too long", **modules)
    assert any(f"chain of {LONGEST_CHAIN + 1} imports" in limit for limit in too_long.broken_limits())


def test_a_long_chain_of_loaded_modules_is_refused(tmp_path: Path) -> None:
    modules = {f"m{number}": f"import lodge.m{number + 1}" for number in range(LONGEST_LOADED_CHAIN)}
    found = house(tmp_path, **{**modules, f"m{LONGEST_LOADED_CHAIN}": ""})
    assert any(f"chain of {LONGEST_LOADED_CHAIN + 1} loaded" in limit for limit in found.broken_limits())


def test_a_short_module_needs_a_reason_that_stays_true(tmp_path: Path) -> None:
    found = house(tmp_path, part____init__='"""Only a docstring."""', part__one="")
    (tmp_path / "lodge" / "short.py").write_text("x = 1\n")
    short = read_house(tmp_path / "lodge", short={})
    assert [module.name for module in short.short_modules()] == ["lodge.short"]
    assert any("lodge.short has 1 lines" in limit for limit in short.broken_limits())
    assert not any(
        "lodge.short" in limit for limit in read_house(tmp_path / "lodge", {"lodge.short": "x"}).broken_limits()
    )
    assert any("lodge.gone" in limit for limit in House(found.modules, {"lodge.gone": "x"}).broken_limits())


def test_a_module_with_one_importer_next_to_it_is_named(tmp_path: Path) -> None:
    found = house(tmp_path, first="import lodge.second", second="", far__third="import lodge.first")
    assert found.with_one_importer() == [("lodge.second", "lodge.first")]
