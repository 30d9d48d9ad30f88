"""Training by torchrun: what two processes learn together is what one learns alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from index_builder.training import ProcessGroup
from tests.support.build_command import Done, vouch_build
from tests.support.collection_files import write_drawings

CONFIG = """
name = "shared"
description = "digits"
[dataset]
kind = "folder"
path = "../drawings"
[outliers]
calibration = "none"
evaluation = "none"
[training]
epochs = 1
labels_per_batch = 7
images_per_label = 3
flip = true
shift = 1
[network]
trunk = "small_cnn"
dropout = 0.1
"""


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--module")


def alone(*arguments: str, cwd: Path) -> Done:
    return vouch_build(*arguments, cwd=cwd)


def together(*arguments: str, cwd: Path) -> Done:
    command = [sys.executable, "-m", *TORCHRUN, "index_builder", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def train(place: Path, run: Callable[..., Done]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    place.mkdir()
    (place / "shared.toml").write_text(CONFIG, encoding="utf-8")
    done = run("train", "-c", "shared.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch 1/1") == 1  # said by one of them
    made = place / "runs" / "shared"
    report = json.loads((made / "training.json").read_text(encoding="utf-8"))
    return report, load_file(made / "checkpoint.safetensors")


@pytest.mark.process
def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    """Of batches of 21 images, which two cannot divide."""
    (tmp_path / "drawings").mkdir()
    write_drawings(tmp_path / "drawings")
    of_one, weights = train(tmp_path / "alone", alone)
    of_two, shared = train(tmp_path / "together", together)
    losses = [[epoch["loss"] for epoch in report["epochs"]] for report in (of_one, of_two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-3, atol=1e-4)


def test_parts_are_of_one_size_and_hold_every_row() -> None:
    rows = torch.arange(100, 107)
    parts = [ProcessGroup(rank, 3).part(rows) for rank in range(3)]
    assert {len(part) for part in parts} == {3}
    assert torch.cat(parts)[:7].tolist() == list(range(7))
    assert torch.cat(parts)[7:].tolist() == [6, 6]


def test_only_training_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = alone("fit", "-c", "digits", cwd=tmp_path)
    assert done.returncode == 1
    assert "Only `train` works under torchrun" in " ".join(done.stderr.split())
