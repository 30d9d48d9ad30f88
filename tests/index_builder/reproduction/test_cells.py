"""Cells of a reproduction, which several commands may measure at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from index_builder.reproduction import cells
from index_builder.reproduction.cells import DECISION, ExperimentPlan, run_cells
from index_builder.reproduction.protocols import protocol_config


def test_two_commands_do_not_share_the_galleries_that_they_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(_config: Any, _run: Any, _data: Any, galleries: Path) -> dict[str, Any]:
        galleries.mkdir(parents=True)
        time.sleep(0.2)
        return {}

    monkeypatch.setattr(cells, "_built", lambda *_: {})
    monkeypatch.setattr(
        cells, "load_protocol", lambda _: MagicMock(test_outliers={"far": MagicMock()})
    )
    monkeypatch.setattr(cells, "evaluate_decision", evaluated)
    monkeypatch.setattr(cells, "write_cell", lambda *_: None)
    plan = ExperimentPlan(protocol_config("digits", epochs=1), [DECISION], [0], tmp_path)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(run_cells, plan) for _ in range(2)]
    assert [one.result() for one in both] == [([], []), ([], [])]
