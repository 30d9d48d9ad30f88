"""Finds labels that differ only in case, spaces or Unicode form; often they mean the same."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from index_builder.datasets.image_files import N_SHOWN


def plain_label(label: str) -> str:
    """Return a label without differences in case, spaces and Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())


def similar_labels(labels: Iterable[str]) -> list[list[str]]:
    """Return groups of labels that differ only in case, spaces or Unicode form, sorted."""
    found: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        found.setdefault(plain_label(label), []).append(label)
    return [names for names in found.values() if len(names) > 1]


def similar_labels_message(groups: list[list[str]]) -> str:
    """Return a warning about groups of similar labels; empty if there are none."""
    if not groups:
        return ""
    shown = "; ".join(", ".join(map(repr, names)) for names in groups[:N_SHOWN])
    return (
        f"{len(groups)} groups of labels differ only in case, spaces or Unicode form, and count "
        f"as different: {shown}. If labels of a group mean the same, use one spelling."
    )
