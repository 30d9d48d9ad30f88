"""Bundles of a few kilobytes, for whatever does not open them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_store.bundles.manifest import Manifest
from model_store.bundles.publish import publish


def small_bundle(root: Path, name: str = "small", **files: bytes) -> Path:
    """A bundle in the directory of bundles ``root``, its current one; more files may be in it."""
    staging = root.with_name(f"{root.name}.staging")
    (staging / "samples").mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(name)).bytes(5000)
    (staging / "encoder.onnx").write_bytes(noise)
    (staging / "gallery.faiss").write_bytes(noise[::-1] + name.encode())
    (staging / "labels.npy").write_bytes(b"labels")
    (staging / "samples" / "1.png").write_bytes(b"a picture")
    for file, content in files.items():
        (staging / f"{file}.bin").write_bytes(content)
    manifest = Manifest(
        gallery={"name": name, "description": "A <b>gallery</b>", "n_items": 3},
        encoder={"fingerprint": "0" * 64, "dim": 4, "posterior": "point"},
        calibration={"n_queries": 9, "max_error": 0.05, "delta": 0.1},
        metrics={
            "n_queries": 8,
            "recall_at_1": 0.875,
            "outlier_auroc": {"far": {"outlier_score": 0.9, "similarity": 0.8}},
            "false_alarm_rate": {"0.05": 0.04},
        },
        samples=(),
        library_versions={},
    )
    return publish(staging, manifest, root, keep=False)
