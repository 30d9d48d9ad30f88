"""Measurements: what a benchmark records, and the tables that are made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import measured

N_QUERIES = 7  # a size, as benchmarks have them


def test_record_writes_figures_with_machine_versions_date_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "MEASURED", tmp_path)
    found = {"recall": {"at 1": np.float32(0.5), "curve": list(range(100))}, "pair": [1, 2.0]}
    path = measured.record_figures("mine", found, globals())
    document = json.loads(path.read_text("utf-8"))
    assert document["numbers"] == {"recall/at 1": 0.5, "pair/0": 1, "pair/1": 2.0}
    assert document["sizes"] == {"n_queries": N_QUERIES}
    assert document["versions"]["numpy"] == np.__version__
    assert document["command"] == "make bench NAME=mine"
    assert document["machine"]
    assert len(document["date"]) == len("2026-01-31")
    page = "\n".join(measured.pages())
    assert "### Measurements: what a benchmark records" in page
    assert "| recall/at 1 | 0.5 |" in page


def test_every_file_says_what_was_measured_when_and_on_which_machine() -> None:
    found = measured.documents()
    assert len(found) > 30
    for name, one in found.items():
        facts = ("title", "command", "source", "date", "machine", "versions", "sizes")
        assert [fact for fact in facts if fact not in one] == [], name
        assert ("numbers" in one) != ("rows" in one), name


def test_every_command_is_a_benchmark_that_exists() -> None:
    named = {
        name
        for one in measured.documents().values()
        for name in re.findall(r"make bench NAME=([\w-]+)", one["command"])
    }
    assert len(named) > 10
    folder = Path(__file__).parent
    missing = [n for n in named if not (folder / f"bench_{n.replace('-', '_')}.py").exists()]
    assert missing == []
    assert not [n for n, one in measured.documents().items() if "make bench-" in one["command"]]


def test_table_of_the_readme_is_that_of_the_measurements() -> None:
    text = measured.README.read_text("utf-8")
    assert "<!-- measured -->" in text
    assert measured.filled(text) == text, "run `make tables`"
