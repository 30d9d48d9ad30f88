"""Near duplicates and contradicted labels, against a direct computation over all pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.curation import (
    COPY,
    MIN_VOTERS,
    N_DUPLICATES,
    N_NEIGHBOURS,
    TEMPERATURE,
    LabelError,
    NearDuplicates,
    Ranking,
    elected,
    examine,
    label_errors,
    near_duplicates,
)
from model_store.encoder.contract import Embeddings
from model_store.gallery import (
    ChangesFile,
    Delete,
    Edit,
    FaissGallery,
    Gallery,
    LiveGallery,
    NewItem,
    Thumbnail,
    write_faiss_gallery,
)

N_LABELS, N_EACH, DIM = 6, 25, 8
PICTURE = Thumbnail(b"-", "image/png")


def directions_and_labels() -> tuple[np.ndarray, list[str | None]]:
    """Clusters, with a few wrong and missing labels, copies and near copies."""
    generator = np.random.default_rng(4)
    codes = np.repeat(np.arange(N_LABELS), N_EACH)
    means = generator.standard_normal((N_LABELS, DIM))[codes]
    means += 0.25 * generator.standard_normal(means.shape)
    labels: list[str | None] = [f"label {code}" for code in codes.tolist()]
    for place in (3, 30, 77, 120):
        labels[place] = f"label {(int(codes[place]) + 1) % N_LABELS}"
    means[31], labels[31] = means[30], labels[30]  # a copy with the same wrong label
    means[50] = means[51] + 0.01 * generator.standard_normal(DIM)
    means[52] = means[51]
    labels[90] = labels[91] = None
    return means.astype(np.float32), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gallery")
    means, labels = directions_and_labels()
    items = [NewItem(f"item-{n:03}", label, {}, PICTURE) for n, label in enumerate(labels)]
    nothing = np.empty((len(items), 0), dtype=np.float32)
    write_faiss_gallery(path, Embeddings(means, np.full_like(means, 0.01), nothing), items, "e")
    return path


@pytest.fixture
def gallery(folder: Path) -> Gallery:
    return FaissGallery(folder)


def oracle_errors(gallery: Gallery, confidence: float) -> list[tuple[int, str, float]]:
    """Contradicted items by a loop over all pairs: row, suggested label, share."""
    rows = gallery.rows()
    directions = gallery.directions(rows).astype(np.float64)
    labels = [item.label for item in gallery.items(rows)]
    found = []
    for one in range(len(rows)):
        if labels[one] is None:
            continue
        similarities = 1 - 0.5 * ((directions - directions[one]) ** 2).sum(axis=1)
        others = [place for place in np.argsort(-similarities, kind="stable") if place != one]
        weights: dict[str, list[float]] = {}
        for place in others[:N_NEIGHBOURS]:
            label = labels[place]
            if label is not None and similarities[place] < COPY:
                weights.setdefault(label, []).append(np.exp(similarities[place] / TEMPERATURE))
        best = max(weights, key=lambda label: sum(weights[label]))
        share = sum(weights[best]) / sum(map(sum, weights.values()))
        if best != labels[one] and len(weights[best]) >= MIN_VOTERS and share >= confidence:
            found.append((int(rows[one]), best, float(share)))
    return found


def errors_of(gallery: Gallery, confidence: float) -> list[LabelError]:
    whole = examine(gallery, None, lambda g, rows: label_errors(g, rows, confidence), 10**6, 60)
    assert (whole.n_examined, whole.last) == (gallery.n_items, None)
    return whole.found


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_label_errors_are_those_of_a_loop_over_all_pairs(
    gallery: Gallery, confidence: float
) -> None:
    wanted = oracle_errors(gallery, confidence)
    found = errors_of(gallery, confidence)
    assert [(one.row, gallery.labels[one.suggested]) for one in found] == [
        (row, label) for row, label, _ in wanted
    ]
    np.testing.assert_allclose([one.confidence for one in found], [one[2] for one in wanted])
    assert {3, 30, 31, 77, 120} <= {one.row for one in found}
    for one in found:
        assert one.row not in one.neighbours
        assert (np.diff(one.similarities) <= 0).all()
        assert (gallery.label_codes(one.neighbours) >= 0).all()


def test_corrected_label_is_no_longer_an_error(folder: Path, tmp_path: Path) -> None:
    base = FaissGallery(folder)
    live = LiveGallery(base, ChangesFile(tmp_path / "changes" / "b.sqlite", "b", "e"))
    before = {one.row for one in errors_of(live.snapshot(), 0.8)}
    live.commit([Edit("item-003", {"label": "label 0"}), Delete("item-077")])
    now = live.snapshot()
    found = {item.id for item in now.items(np.array([one.row for one in errors_of(now, 0.8)]))}
    assert found == {f"item-{row:03}" for row in before - {3, 77}}
    assert [one[:2] for one in oracle_errors(now, 0.8)] == [
        (one.row, now.labels[one.suggested]) for one in errors_of(now, 0.8)
    ]
    live.close()


def test_whole_series_with_a_wrong_label_is_found(tmp_path: Path) -> None:
    """Four labels of five series with eight items each; one whole series has a wrong label."""
    generator = np.random.default_rng(5)
    codes, series = np.repeat(np.arange(4), 40), np.repeat(np.arange(20), 8)
    means = 3 * generator.standard_normal((4, DIM))[codes]
    means += generator.standard_normal((20, DIM))[series]
    means += 0.05 * generator.standard_normal(means.shape)
    labels = np.where(series == 7, 3, codes)
    found = {}
    for named in (False, True):
        folder = tmp_path / str(named)
        folder.mkdir()
        items = [
            NewItem(f"{n:03d}", f"label {label}", {"group": one} if named else {}, PICTURE)
            for n, (label, one) in enumerate(zip(labels.tolist(), series.tolist(), strict=True))
        ]
        known = means.astype(np.float32), np.full(means.shape, 0.01, np.float32)
        nothing = np.empty((len(items), 0), dtype=np.float32)
        write_faiss_gallery(folder, Embeddings(*known, nothing), items, "e")
        errors = errors_of(FaissGallery(folder), 0.8)
        found[named] = {one.row for one in errors}
        assert all(len(one.neighbours) <= N_NEIGHBOURS for one in errors)
    assert found[True] == set(np.flatnonzero(series == 7).tolist())
    assert not found[False], "a series votes for its wrong label"


def test_a_label_needs_several_voters() -> None:
    similarities = np.array([[0.99, 0.3, 0.2, 0.1, 0.1], [0.99, 0.98, 0.97, 0.1, 0.1]])
    votes = np.array([[4, 1, 1, 2, 3], [4, 4, 4, -1, 1]], dtype=np.int32)
    labels, shares = elected(votes, similarities)
    assert labels.tolist() == [-1, 4]
    weights = np.exp(similarities[1] / TEMPERATURE)
    assert shares[1] == pytest.approx(weights[:3].sum() / (weights[:3].sum() + weights[4]))
    labels, shares = elected(np.full((1, 3), -1, dtype=np.int32), np.zeros((1, 3)))
    assert (labels.tolist(), shares.tolist()) == ([-1], [0])


@pytest.mark.parametrize("threshold", [0.97, 0.98, 0.999])
def test_near_duplicates_are_those_of_a_loop_over_all_pairs(
    gallery: Gallery, threshold: float
) -> None:
    rows = gallery.rows()
    directions = gallery.directions(rows).astype(np.float64)
    wanted = {}
    for one in range(len(rows)):
        similarities = 1 - 0.5 * ((directions - directions[one]) ** 2).sum(axis=1)
        others = [int(row) for row in np.flatnonzero(similarities >= threshold) if row != one]
        if others:
            wanted[one] = sorted(others, key=lambda row: (-round(similarities[row], 8), row))
    assert max(map(len, wanted.values())) <= N_DUPLICATES
    found = near_duplicates(gallery, rows, threshold)
    assert {one.row: one.duplicates.tolist() for one in found} == wanted
    assert set(wanted) >= {30, 31, 50, 51, 52}


def test_parts_of_a_gallery_are_the_whole(gallery: Gallery) -> None:
    """A part ends with the limit or the time, and the next begins after it."""

    def check(g: Gallery, rows: np.ndarray) -> list[NearDuplicates]:
        return near_duplicates(g, rows, 0.97)

    whole = examine(gallery, None, check, 10**6, 60).found
    for limit, budget_s in ((1, 60.0), (10**6, 0.0)):
        found, n_examined, after = [], 0, None
        while True:
            part = examine(gallery, after, check, limit, budget_s)
            found += part.found
            n_examined += part.n_examined
            after = part.last
            if after is None:
                break
        assert n_examined == gallery.n_items
        assert [one.row for one in found] == [one.row for one in whole]


def ranked(ranking: Ranking[Any], gallery: Gallery, limit: int) -> list[Any]:
    """All pages of a ranking from a strength of 0.6 on."""
    found, place = ranking.page(gallery, None, 0.6, limit, 60)
    while place is not None:
        more, place = ranking.page(gallery, place, 0.6, limit, 60)
        found += more
    return found


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("check", [label_errors, near_duplicates])
def test_ranking_lists_the_findings_of_the_whole_gallery_by_strength(
    gallery: Gallery, check: Callable[[Gallery, np.ndarray, float], list[Any]], limit: int
) -> None:
    ranking = Ranking(check)
    n_examined, n_left, n_steps = 0, gallery.n_items, 0
    while n_left:
        n_more, n_left = ranking.examine(gallery, 0)  # no time: one part each
        n_examined, n_steps = n_examined + n_more, n_steps + 1
        assert n_left == gallery.n_items - n_examined
    assert n_steps == 3
    every = check(gallery, gallery.rows(), 0.6)
    wanted = sorted(every, key=lambda one: (-one.strength, one.row))
    found = ranked(ranking, gallery, limit)
    assert [(one.row, one.strength) for one in found] == [(one.row, one.strength) for one in wanted]
    assert len(found) >= 5


def test_ranking_page_without_time_ends_early_and_loses_nothing(gallery: Gallery) -> None:
    ranking = Ranking(near_duplicates)
    ranking.examine(gallery, 60)
    whole, end = ranking.page(gallery, None, 0.5, 1000, 60)
    assert (len(whole), end) == (gallery.n_items, None)
    strengths = [one.strength for one in whole]
    assert strengths == sorted(strengths, reverse=True)
    part, place = ranking.page(gallery, None, 0.5, 1000, 0)
    assert len(part) == 64
    assert place == (part[-1].strength, part[-1].row)
    rest, _ = ranking.page(gallery, place, 0.5, 1000, 60)
    assert [one.row for one in part + rest] == [one.row for one in whole]


def test_ranking_follows_the_changes_of_a_live_gallery(folder: Path, tmp_path: Path) -> None:
    base = FaissGallery(folder)
    live = LiveGallery(base, ChangesFile(tmp_path / "changes" / "b.sqlite", "b", "e"))
    ranking = Ranking(label_errors)
    ranking.examine(live.snapshot(), 60)
    before = {one.row for one in ranked(ranking, live.snapshot(), 100)}
    assert {3, 77} <= before
    live.commit(
        [
            Edit("item-003", {"label": "label 0"}),
            Delete("item-077"),
            Edit("item-010", {"label": "label 5"}),
        ]
    )
    now = live.snapshot()
    assert ranking.examine(now, 60) == (2, 0)  # the rows of the two changed items
    rows = np.array([one.row for one in ranked(ranking, now, 100)])
    ids = {item.id for item in now.items(rows)}
    assert ids == {f"item-{row:03}" for row in before - {3, 77}} | {"item-010"}
    live.close()
