"""Training by torchrun: what two processes learn together is what one learns alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from index_builder.training.distributed import Group

CONFIG = """
name = "shared"
description = "digits"
[dataset]
kind = "digits"
[training]
epochs = 1
labels_per_batch = 7
images_per_label = 19
flip = true
shift = 1
[network]
dropout = 0.1
"""


def train(place: Path, *command: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    place.mkdir()
    (place / "shared.toml").write_text(CONFIG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", *command, "train", "-c", "shared.toml"],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 1/1") == 1  # said by one of them
    run = place / "runs" / "shared"
    report = json.loads((run / "training.json").read_text(encoding="utf-8"))
    return report, load_file(run / "checkpoint.safetensors")


@pytest.mark.process
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    """Of batches of 133 images, which two cannot divide."""
    alone, weights = train(tmp_path / "alone", "index_builder")
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--module")
    together, shared = train(tmp_path / "together", *torchrun, "index_builder")
    losses = [[epoch["loss"] for epoch in one["epochs"]] for one in (alone, together)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-3, atol=1e-4)


def test_parts_are_of_one_size_and_hold_every_row() -> None:
    rows = torch.arange(100, 107)
    parts = [Group(rank, 3).part(rows) for rank in range(3)]
    assert {len(part) for part in parts} == {3}
    assert torch.cat(parts)[:7].tolist() == list(range(7))
    assert torch.cat(parts)[7:].tolist() == [6, 6]


@pytest.mark.process
def test_only_training_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = subprocess.run(
        [sys.executable, "-m", "index_builder", "fit", "-c", "digits"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "only `train` can share its work" in " ".join(done.stderr.split())
