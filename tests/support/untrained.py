"""Bundles as if their encoder had not been trained on the labels of their gallery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from model_store.bundles.kept_queries import CalibrationInputs
from tests.support.narrowing import not_none


def as_untrained(directory: Path) -> None:
    """Change the stored queries of a copied bundle."""
    kept = not_none(CalibrationInputs.load(directory))
    replace(kept, unseen=True).save(directory)
