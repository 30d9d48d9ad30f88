"""The table of every system of the papers says what is registered, and each row has a state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from index_builder.configuration.encoder import EncoderConfig
from index_builder.methods import METHODS
from index_builder.objectives.registry import OBJECTIVES
from index_builder.reproduction.command import COMPARISONS
from index_builder.reproduction.methods import METHODS as COMPARED
from index_builder.reproduction.protocols import PROTOCOLS

ROOT = Path(__file__).parents[3]
SYSTEMS = ROOT / "index_builder" / "reproduction" / "SYSTEMS.md"
STATES = {"works", "checked", "not applicable"}
NUMBERS = {"M": 25, "S": 19, "K": 24}
BEYOND = {"margin", "smooth_ap", "mc_info_nce"}
"""Objectives of no row: of papers that these compare with, or that came after."""


def section() -> str:
    return SYSTEMS.read_text("utf-8")


def rows() -> list[tuple[str, str, str]]:
    """Number, state and by what, of each row."""
    cells = [line.strip("|").split("|") for line in section().splitlines() if line[:1] == "|"][2:]
    return [(number.strip(), state.strip(), by) for number, _, state, by in cells]


def test_every_row_has_one_state() -> None:
    wanted = [f"{key}{n:02}" for key, most in NUMBERS.items() for n in range(1, most + 1)]
    assert [number for number, _, _ in rows()] == wanted
    assert {state for _, state, _ in rows()} == STATES
    states = [state for _, state, _ in rows()]
    said = "{works} work, {checked} are checked, {na} do not apply".format(
        na=states.count("not applicable"), **{one: states.count(one) for one in STATES}
    )
    assert said in section()


def test_the_objectives_that_work_are_those_that_are_registered() -> None:
    working = "".join(by for _, state, by in rows() if state == "works")
    assert set(re.findall(r'objective = "(\w+)"', working)) == set(OBJECTIVES) - BEYOND
    assert set(re.findall(r'method = "(\w+)"', working)) <= set(METHODS)
    assert set(re.findall(r"--protocol ([\w-]+)", section())) <= {*PROTOCOLS, *COMPARISONS}
    assert set(re.findall(r"--objective (\w+)", section())) <= set(OBJECTIVES)
    assert set(re.findall(r"--methods (\w+)", section())) <= set(COMPARED)


SETTINGS = re.findall(r'objective = "(\w+)"`? with `(\w+) = "(\w+)"', section())


@pytest.mark.parametrize(("kind", "key", "value"), SETTINGS)
def test_settings_that_are_named_are_settings(kind: str, key: str, value: str) -> None:
    objective = {"kind": kind, key: value}
    EncoderConfig.model_validate({"name": "x", "training": {"objective": objective}})


def test_every_test_that_is_named_exists() -> None:
    for number, state, by in rows():
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", by)
        assert bool(named) == (state == "checked"), number
        for path, test in named:
            assert f"def {test}(" in (ROOT / path).read_text("utf-8") or not test, number
