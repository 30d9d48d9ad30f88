"""Every defect that was found by an attack has tests that would see it again."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def test_every_defect_names_tests_that_are_there() -> None:
    rows = [line for line in TABLE.splitlines() if re.match(r"\| (D\d+ \| |\| … by )", line)]
    assert [row.split()[1] for row in rows if row.startswith("| D")] == [
        f"D{number}" for number in range(1, 22)
    ]
    for row in rows:
        named = re.findall(r"`(\S+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            there = re.findall(r"def (test_\w+)", (TESTS / path).read_text(encoding="utf-8"))
            assert test in there, f"{path} has no {test}"
