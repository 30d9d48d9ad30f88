"""Writes the reports of a run: failed images, copies, losses, held-out images, and a summary."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.assemble import duplicates
from index_builder.indexing.blocks import Failure
from index_builder.indexing.holding_out import held_out
from index_builder.indexing.workdir import Work
from model_store.files import json_text, replacing


def write_quarantine(
    work: Work, failures: Mapping[str, Failure], left_out: LeftOut | None = None
) -> None:
    """Write a line for each image that is not in the gallery, in the order of the source.

    Parameters
    ----------
    left_out : files of the source that were left out; the report lists them last.
    """
    connection = sqlite3.connect(work.catalogue)
    try:
        rows = [
            connection.execute("SELECT position, origin FROM entries WHERE id = ?", (one,))
            for one in failures
        ]
        found = sorted(
            (*row.fetchone(), name, why)
            for row, (name, why) in zip(rows, failures.items(), strict=True)
        )
    finally:
        connection.close()
    _write_lines(
        work.quarantine,
        [
            {"id": name, "source": origin, "error": why.error, "reason": why.reason}
            for _, origin, name, why in found
        ]
        + [
            {"id": one.name, "source": one.name, "error": one.reason, "reason": one.sentence}
            for one in (left_out.files if left_out is not None else ())
        ],
    )


def write_losses(work: Work, losses: Mapping[str, Sequence[str]]) -> None:
    """Write a line for each image that lost data in decoding, in the order of ids."""
    _write_lines(work.losses, ({"id": name, "losses": losses[name]} for name in sorted(losses)))


def counted(losses: Mapping[str, Sequence[str]]) -> str:
    """Describe as text how many images have losses, and the three most frequent losses."""
    counts = Counter(sentence for said in losses.values() for sentence in said)
    shown = [f"{n:,} × {sentence.rstrip('.')}" for sentence, n in counts.most_common(3)]
    return f"{len(losses):,}" + (f": {'; '.join(shown)}" if shown else "")


def write_duplicates(work: Work) -> int:
    """Write a line for each group of items with equal content; return the number of copies."""
    n_copies = 0

    def lines() -> Iterable[Mapping[str, Any]]:
        nonlocal n_copies
        for content, ids in duplicates(work.catalogue):
            n_copies += len(ids) - 1
            yield {"sha256": content, "ids": ids}

    _write_lines(work.duplicates, lines())
    return n_copies


def write_held_out(work: Work) -> int:
    """Write a line for each held-out image; return the number of held-out images."""
    ids = held_out(work.catalogue)
    _write_lines(work.held_out, ({"id": name} for name in ids))
    return len(ids)


def write_summary(work: Work, summary: Mapping[str, Any]) -> None:
    """Write the input and the state of the run, atomically."""
    with replacing(work.summary) as partial:
        partial.write_text(json_text(summary), encoding="utf-8")


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
