"""Queries of labels that nothing was fitted to, grouped, with a P(same) that comes true."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform

from model_store import identities as joining
from model_store.bundles.kept_queries import (
    BUILD_QUERIES_FILE,
    KEPT_QUERIES_FILE,
    CalibrationInputs,
    Kept,
)
from model_store.encoder.contract import Embeddings
from model_store.errors import IdentitiesUnavailable
from model_store.gallery import FaissGallery, NewItem, Thumbnail, write_faiss_gallery
from model_store.identities import (
    FLOOR,
    Group,
    Grouping,
    group_id,
    joined,
    neighbour_pairs,
    share_of_same,
)
from model_store.identity_pairs import Compared, Labelled, Points, fit_logistic
from model_store.table import HalfRows

DIM, PER_LABEL = 24, 8


def world(seed: int, n_labels: int, spread: float = 0.6, n_alike: int = 0) -> Labelled:
    """Images around label centres; some are seen worse than others, and the encoder knows it.

    Each of the first ``n_alike`` labels has the centre of another label.
    """
    generator = np.random.default_rng(seed)
    of_labels = generator.standard_normal((n_labels, DIM))
    of_labels[:n_alike] = of_labels[n_alike : 2 * n_alike]
    centres = np.repeat(of_labels, PER_LABEL, axis=0)
    noise = spread * np.exp(0.4 * generator.standard_normal(len(centres)))
    mean = centres + noise[:, None] * generator.standard_normal(centres.shape)
    variance = np.repeat(noise[:, None] ** 2, DIM, axis=1)
    points = Points.of(mean.astype(np.float32), variance.astype(np.float32))
    return Labelled(points, np.repeat(np.arange(n_labels), PER_LABEL))


@pytest.fixture(scope="module")
def grouping() -> Grouping:
    return Grouping.fit(world(0, 60), seed=0)


def outcomes(groups: list[Group], codes: NDArray[np.integer]) -> tuple[list[float], list[bool]]:
    """P(same) of each group's pairs, and whether each is the same."""
    said, true = [], []
    for group in groups:
        for first, second in combinations(group.rows.tolist(), 2):
            said.append(group.probability)
            true.append(bool(codes[first] == codes[second]))
    return said, true


def test_images_less_certain_than_all_of_the_fit_form_no_group(grouping: Grouping) -> None:
    """Beyond the variances of the fit, a larger variance is no further evidence."""
    generator = np.random.default_rng(2)
    mean = generator.standard_normal((40, DIM)).astype(np.float32)
    groups = grouping.groups(Points.of(mean, np.full_like(mean, 1e12)))
    assert groups == []


@pytest.mark.parametrize("n_labels", [20, 80])
def test_pairs_of_groups_are_the_same_as_often_as_said(grouping: Grouping, n_labels: int) -> None:
    queries = world(1, n_labels)
    groups = grouping.groups(queries.points, 0.9)
    said, true = outcomes(groups, queries.codes)
    n_same = n_labels * PER_LABEL * (PER_LABEL - 1) / 2
    assert np.mean(true) >= 0.9
    assert sum(true) / n_same >= 0.6
    assert np.mean(said) == pytest.approx(np.mean(true), abs=0.08)
    assert [len(group.rows) for group in groups] == sorted(
        (len(group.rows) for group in groups), reverse=True
    )
    for group in groups:
        assert group.medoid in group.rows
        assert group.probability == pytest.approx(group.probabilities.mean())
    members = [row for group in groups for row in group.rows.tolist()]
    assert len(set(members)) == len(members)


@pytest.mark.parametrize("n_alike", [10, 15])
def test_where_labels_look_alike_no_precision_is_said_that_is_not_there(n_alike: int) -> None:
    """Of ten pairs of labels with the same centres, no group tells one from the other."""
    said: list[float] = []
    true: list[bool] = []
    for seed in range(3):
        fitted = Grouping.fit(world(seed, 60, n_alike=n_alike), seed=0)
        queries = world(seed + 100, 60, n_alike=n_alike)
        of_seed = outcomes(fitted.groups(queries.points, 0.6), queries.codes)
        said, true = said + of_seed[0], true + of_seed[1]
        assert sum(len(group.rows) for group in fitted.groups(queries.points, 0.9)) <= 10
    assert len(said) > 2_000
    assert np.mean(said) == pytest.approx(np.mean(true), abs=0.03)


def test_of_few_labels_nothing_is_said_to_be_certain() -> None:
    few = Grouping.fit(world(0, 6))
    assert few.probability(np.array([50.0]), few.share) == pytest.approx(6 / 7)
    assert few.groups(world(1, 20).points, 0.9) == []
    assert few.groups(world(1, 20).points, 0.8)


def test_more_precision_joins_fewer(grouping: Grouping) -> None:
    queries = world(2, 40, spread=1.2)
    n_pairs = [
        sum(len(group.rows) * (len(group.rows) - 1) for group in grouping.groups(queries.points, p))
        for p in (0.9, 0.95, 0.97)
    ]
    assert n_pairs[0] > n_pairs[1] > n_pairs[2]


def test_strangers_are_not_grouped(grouping: Grouping) -> None:
    queries = world(3, 300)
    alone = queries.points.at(np.arange(0, len(queries.codes), PER_LABEL))
    assert sum(len(group.rows) for group in grouping.groups(alone)) <= 30
    assert grouping.groups(alone.at(np.array([0]))) == []


def test_the_same_queries_give_the_same_groups(grouping: Grouping) -> None:
    queries, again = world(4, 10), Grouping.fit(world(0, 60), seed=0)
    for one, other in zip(
        grouping.groups(queries.points), again.groups(queries.points), strict=True
    ):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)


def test_components_are_joined_as_all_pairs_would_be(grouping: Grouping) -> None:
    queries = world(5, 12)
    compared = Compared.with_cohort(queries.points, grouping.cohort.directions)
    parts, share = joined(compared, grouping.pairs)
    n = len(compared)
    first, second = np.triu_indices(n, 1)
    prior = np.log(share / (1 - share))
    log_odds = grouping.pairs(compared.signals(first, second)) + prior
    whole = squareform(log_odds.max() - cophenet(linkage(log_odds.max() - log_odds, "average")))
    seen = np.full((n, n), -np.inf)
    for part in parts:
        seen[np.ix_(part.rows, part.rows)] = squareform(part.heights())
    above = whole >= FLOOR
    np.fill_diagonal(above, val=False)
    assert above.any()
    np.testing.assert_allclose(seen[above], whole[above], atol=1e-4)
    assert (seen[~above & ~np.eye(n, dtype=bool)] < FLOOR + 1e-6).all()


def test_large_components_are_cut_at_their_weakest_links(
    grouping: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = world(6, 12)
    compared = Compared.with_cohort(queries.points, grouping.cohort.directions)
    monkeypatch.setattr(joining, "MOST_TOGETHER", 2 * PER_LABEL)
    parts, _ = joined(compared, grouping.pairs)
    assert max(len(part.rows) for part in parts) <= 2 * PER_LABEL
    said, true = outcomes(grouping.groups(queries.points), queries.codes)
    assert len(said) > 100
    assert np.mean(true) >= 0.85


def test_the_graph_holds_each_pair_once_and_the_nearest_of_all() -> None:
    points = world(7, 30).points
    first, second = neighbour_pairs(points.directions)
    assert (first < second).all()
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == len(first)
    cosines = points.directions @ points.directions.T
    np.fill_diagonal(cosines, -2)
    nearest = cosines.argmax(axis=1)
    known = set(zip(first.tolist(), second.tolist(), strict=True))
    assert all((min(i, j), max(i, j)) in known for i, j in enumerate(nearest.tolist()))


def test_the_share_of_same_pairs_is_found() -> None:
    generator = np.random.default_rng(8)
    n = 400
    same = generator.random(n * (n - 1) // 2) < 0.03
    ratios = 3.0 * generator.standard_normal(len(same)) + np.where(same, 4.5, -4.5)
    assert share_of_same(ratios, n) == pytest.approx(same.mean(), rel=0.1)


def test_the_fit_agrees_with_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = np.random.default_rng(9)
    values = generator.standard_normal((500, 2)) * [1, 5] + [3, -2]
    outcome = generator.random(500) < 1 / (1 + np.exp(-(values[:, 0] - 3 + 0.2 * values[:, 1])))
    weights = generator.random(500) + 0.5
    ours = fit_logistic(values, outcome, weights)
    theirs = linear_model.LogisticRegression(C=1e9).fit(values, outcome, sample_weight=weights)
    expected = theirs.decision_function(values)
    np.testing.assert_allclose(ours.log_odds(values), expected, atol=0.03)


def test_a_group_is_named_by_its_members() -> None:
    assert group_id(["b", "a"]) == group_id(["a", "b"]) != group_id(["a", "c"])


def test_too_few_labels_say_nothing() -> None:
    with pytest.raises(IdentitiesUnavailable, match="3 labels of the gallery have two items"):
        Grouping.fit(world(0, 3))


def test_labels_that_the_encoder_was_trained_on_do_not_make_strangers_the_same(
    tmp_path: Path,
) -> None:
    """Images of a label that was trained on are nearly equal; those of a new label are not."""
    trained, new, queries = world(0, 40, spread=0.05), world(0, 40), world(1, 40)
    bundle = stored(tmp_path, trained, new)
    said, true = outcomes(Grouping.of_bundle(bundle).groups(queries.points), queries.codes)
    assert np.mean(true) >= 0.85
    assert np.mean(said) == pytest.approx(np.mean(true), abs=0.08)
    shutil.move(tmp_path / KEPT_QUERIES_FILE, tmp_path / BUILD_QUERIES_FILE)
    stored(tmp_path, trained, None)  # a later calibration with queries of users
    groups = Grouping.of_bundle(bundle).groups(queries.points)
    assert outcomes(groups, queries.codes) == (said, true)


def test_without_labels_that_the_encoder_was_not_trained_on_nothing_is_said(
    tmp_path: Path,
) -> None:
    bundle = stored(tmp_path, world(0, 40, spread=0.05), None)
    with pytest.raises(IdentitiesUnavailable, match="surely not trained on"):
        Grouping.of_bundle(bundle)
    (tmp_path / KEPT_QUERIES_FILE).unlink()
    with pytest.raises(IdentitiesUnavailable, match="An earlier release built the bundle"):
        Grouping.of_bundle(bundle)


def stored(directory: Path, trained: Labelled, new: Labelled | None) -> Any:
    """Return a bundle whose encoder was trained on its gallery's labels.

    Parameters
    ----------
    new : the same items, each embedded by a layer that was fitted without the item's label.
    """
    names = tuple(str(number) for number in range(len(trained.codes)))
    labels = tuple(map(str, trained.codes.tolist()))
    gallery = directory / "gallery"
    if not gallery.exists():
        gallery.mkdir()
        picture = Thumbnail(b"-", "image/png")
        items = [NewItem(*one, {}, picture) for one in zip(names, labels, strict=True)]
        write_faiss_gallery(gallery, embeddings_of(trained), items, "e" * 64)
    parts = [
        HalfRows.of(getattr(embeddings_of(new or trained), part))
        for part in ("mean", "variance", "features")
    ]
    matched = Kept(names, labels, names, None, *parts)
    unlabelled = None if new is None else HalfRows.of(new.points.directions)
    nothing = matched.at(np.empty(0, dtype=np.int64))
    kept = CalibrationInputs(
        matched, nothing, are_views=False, unseen=False, seed=0, unlabelled=unlabelled
    )
    kept.save(directory)
    retriever = SimpleNamespace(gallery=FaissGallery(gallery), calibration=object())
    return SimpleNamespace(directory=directory, retriever=retriever)


def embeddings_of(known: Labelled) -> Embeddings:
    points = known.points
    variance = np.repeat(points.total_variances[:, None] / DIM, DIM, axis=1).astype(np.float32)
    return Embeddings(points.directions, variance, np.zeros((len(points), 1), np.float32))


def test_an_encoder_that_sees_nothing_says_so_or_groups_nothing() -> None:
    generator = np.random.default_rng(10)
    blind = generator.standard_normal((300, DIM)).astype(np.float32)
    points = Points.of(blind, np.ones_like(blind))
    codes = np.repeat(np.arange(60), 5)
    try:
        groups = Grouping.fit(Labelled(points, codes)).groups(points)
    except IdentitiesUnavailable:
        return
    assert sum(len(group.rows) for group in groups) <= 10
