"""Vectors around common centres, and galleries of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.build_command import Done, vouch_build

N_LABELS, N_EACH, DIM = 40, 12, 24


def clusters(seed: int, n_each: int = N_EACH) -> tuple[NDArray[np.float32], list[str]]:
    """Vectors (n, D) with their labels, around the same centres whatever the seed."""
    centres = np.random.default_rng(0).normal(size=(N_LABELS, DIM))
    noise = np.random.default_rng([1, seed]).normal(size=(N_LABELS, n_each, DIM))
    vectors = (centres[:, None] + 0.5 * noise).reshape(-1, DIM)
    return vectors.astype(np.float32), [f"l{row // n_each}" for row in range(len(vectors))]


def write_items(path: Path, labels: list[str], **others: list[Any]) -> Path:
    """Write a manifest with a line for each label."""
    columns = {"id": [f"i{row:04d}" for row in range(len(labels))], "label": labels, **others}
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def index_vectors(where: Path, vectors: Path, *options: object) -> Done:
    """Run ``vouch-build index`` in ``where``, to a gallery with the name ``vec``."""
    arguments = ["index", vectors, "--encoder-name", "theirs", "--name", "vec", *options]
    return vouch_build(*map(str, arguments), cwd=where)
