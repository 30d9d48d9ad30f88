"""Decisions on neighbours that another store has found are those of the gallery's own search."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import NeighbourList, Retriever, VectorQuery, decide_list, open_bundle
from model_store.decision import Terms
from model_store.encoder.contract import Embeddings
from model_store.errors import InvalidVector, UnknownSource
from model_store.images import decode_image
from model_store.queries import predictive_of

TERMS = Terms(alpha=0.05)


@pytest.fixture(scope="module")
def retriever(digits_bundle: Path) -> Retriever:
    return open_bundle(digits_bundle, "cpu").retriever


@pytest.fixture(scope="module")
def pixels(digits_bundle: Path, retriever: Retriever) -> NDArray[np.uint8]:
    """The sample queries, among them one of another world."""
    files = sorted((digits_bundle / "samples").iterdir())
    return np.stack([retriever.prepare(decode_image(path.read_bytes())) for path in files])


@pytest.fixture(scope="module")
def embeddings(retriever: Retriever, pixels: NDArray[np.uint8]) -> Embeddings:
    return retriever.encoder.encode(pixels)


def query(embeddings: Embeddings, row: int = 0, **changes: Any) -> VectorQuery:
    made = VectorQuery(embeddings.mean[row], embeddings.variance[row], embeddings.features[row])
    return replace(made, **changes)


def found_by(retriever: Retriever, direction: NDArray[np.float32], n: int = 200) -> NeighbourList:
    """The nearest items by brute force, as another store would find them."""
    gallery = retriever.gallery
    vectors = gallery.directions(np.arange(gallery.n_items)).astype(np.float64)
    rows = np.argsort(-(vectors @ direction), kind="stable")[:n]
    items = gallery.items(rows)
    return NeighbourList(
        [item.id for item in items],
        [item.label for item in items],
        vectors=vectors[rows] * 3.7,  # of any length
    )


def test_they_are_those_of_the_search(retriever: Retriever, embeddings: Embeddings) -> None:
    for row in range(len(embeddings)):
        predictive = retriever.predictives(embeddings.at(np.array([row])))[0]
        answer = retriever.find(predictive, limit=200)
        decided = decide_list(
            retriever, query(embeddings, row), found_by(retriever, predictive.direction), TERMS
        )
        expected = {match.id: match for match in answer.matches}
        assert decided.decision.verdict == answer.decision.verdict
        nothing = decided.decision.no_match_probability
        assert nothing == pytest.approx(answer.decision.no_match_probability, abs=1e-4)
        assert decided.decision.match_probabilities is not None
        neighbours = found_by(retriever, predictive.direction)
        for name, similarity, probability in zip(
            neighbours.ids, decided.similarities, decided.decision.match_probabilities, strict=True
        ):
            assert similarity == pytest.approx(expected[name].similarity, abs=1e-6)
            # A cosine of another rounding is another distance to the nearest items.
            assert probability == pytest.approx(expected[name].match_probability, abs=1e-4)
        given = [match.similarity for match in answer.matches]
        again = NeighbourList(
            [match.id for match in answer.matches],
            [match.label for match in answer.matches],
            similarities=given,
        )
        same = decide_list(retriever, query(embeddings, row), again, TERMS).decision
        assert same.match_probabilities is not None
        served = [match.match_probability for match in answer.matches]
        np.testing.assert_allclose(same.match_probabilities, np.array(served, float), atol=1e-9)
        members = decided.decision.result_set
        assert members is not None
        assert [neighbours.ids[place] for place in members.places] == [
            item.id for item in answer.result_set
        ]


def test_a_list_longer_than_those_of_the_calibration_is_no_error(
    retriever: Retriever, embeddings: Embeddings
) -> None:
    direction = embeddings.directions[0]
    exact, longer = (
        decide_list(retriever, query(embeddings), found_by(retriever, direction, n), TERMS)
        for n in (200, 300)
    )
    assert longer.decision.verdict == exact.decision.verdict
    assert longer.decision.no_match_probability == exact.decision.no_match_probability


def test_similarities_and_vectors_decide_alike(
    retriever: Retriever, embeddings: Embeddings
) -> None:
    direction = embeddings.directions[0]
    by_vectors = found_by(retriever, direction)
    vectors = np.asarray(by_vectors.vectors)
    cosines = vectors @ direction / np.linalg.norm(vectors, axis=1)
    by_cosines = replace(by_vectors, vectors=None, similarities=cosines.tolist())
    one, other = (
        decide_list(retriever, query(embeddings), each, TERMS) for each in (by_vectors, by_cosines)
    )
    np.testing.assert_array_equal(one.similarities, other.similarities)
    assert one.decision.no_match_probability == other.decision.no_match_probability


def test_an_outlier_score_stands_for_features(retriever: Retriever, embeddings: Embeddings) -> None:
    whole = predictive_of(retriever, query(embeddings))
    stored = VectorQuery(
        whole.direction.tolist(), whole.variance.tolist(), outlier_score=whole.outlier_score
    )
    again = predictive_of(retriever, stored)
    np.testing.assert_allclose(again.direction, whole.direction, atol=1e-6)
    assert again.spherical_variance == pytest.approx(whole.spherical_variance, rel=1e-5)
    assert again.outlier_score == whole.outlier_score


def test_labels_that_came_later_are_unknown_and_apart(
    retriever: Retriever, embeddings: Embeddings
) -> None:
    plain = found_by(retriever, embeddings.directions[0])
    first = plain.labels[0]
    renamed = replace(plain, labels=["new" if label == first else label for label in plain.labels])
    one, other = (
        decide_list(retriever, query(embeddings), each, TERMS).decision for each in (plain, renamed)
    )
    assert one.match_probabilities is not None
    assert other.match_probabilities is not None
    same = np.array([label == first for label in plain.labels])
    assert len(set(other.match_probabilities[same].tolist())) == 1
    assert one.verdict == "match"
    assert other.verdict == "ambiguous"  # nothing is promised of labels with so few items


def test_features_of_an_encoder_without_posterior_are_its_vector(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = copy(retriever)
    dim = retriever.encoder.n_features
    metadata = replace(retriever.encoder.metadata, posterior="deterministic")
    encoder: Any = SimpleNamespace(fingerprint="", metadata=metadata, dim=dim, n_features=dim)
    plain.encoder = encoder
    seen: list[Embeddings] = []

    def taken(found: Embeddings, _: object) -> list[None]:
        seen.append(found)
        return [None]

    monkeypatch.setattr(plain, "predictives", taken)
    mean = np.arange(1, dim + 1, dtype=np.float32)
    predictive_of(plain, VectorQuery(mean))
    np.testing.assert_array_equal(seen[0].features[0], mean)


class TestWhatCannotBeDecided:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"mean": [1.0, 2.0]}, r"`mean` has the shape \(2,\), wanted"),
            ({"mean": [[1.0]]}, r"`mean` has the shape \(1, 1\)"),
            ({"variance": [1.0]}, r"`variance` has the shape"),
            ({"features": [1.0]}, r"`features` has the shape"),
            ({"features": None}, "Send `features`"),
            ({"fingerprint": "0" * 64}, "cannot be compared"),
        ],
    )
    def test_a_query(
        self, changes: dict[str, Any], reason: str, retriever: Retriever, embeddings: Embeddings
    ) -> None:
        with pytest.raises(InvalidVector, match=reason):
            predictive_of(retriever, query(embeddings, **changes))

    @pytest.mark.parametrize(
        ("value", "reason"),
        [(np.nan, "`mean` has nan at place 3"), (np.inf, "`mean` has inf at place 3")],
    )
    def test_numbers_that_are_none(
        self, value: float, reason: str, retriever: Retriever, embeddings: Embeddings
    ) -> None:
        mean = embeddings.mean[0].copy()
        mean[3] = value
        with pytest.raises(InvalidVector, match=reason):
            predictive_of(retriever, query(embeddings, mean=mean))

    def test_no_direction_and_less_than_no_variance(
        self, retriever: Retriever, embeddings: Embeddings
    ) -> None:
        zero = np.zeros_like(embeddings.mean[0])
        with pytest.raises(InvalidVector, match="it has no direction"):
            predictive_of(retriever, query(embeddings, mean=zero))
        with pytest.raises(InvalidVector, match="has negative numbers"):
            predictive_of(retriever, query(embeddings, variance=zero - 1))

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda one: replace(one, ids=[], labels=[], vectors=[]), "no neighbours|the shape"),
            (
                lambda one: _some(one, 150),
                "has 150 neighbours, but the calibration needs at least 200",
            ),
            (lambda one: replace(one, ids=[one.ids[0], *one.ids[:-1]]), "is in the list twice"),
            (lambda one: replace(one, labels=one.labels[1:]), "Each neighbour must have an id"),
            (lambda one: replace(one, vectors=None), "and a similarity or a vector"),
            (lambda one: replace(one, similarities=[0.0] * 200), "and a similarity or a vector"),
            (
                lambda one: replace(one, vectors=None, similarities=[*[0.5] * 199, 0.6]),
                r"Neighbour 199 is nearer \(0.600000\) than the neighbour before it \(0.500000\)",
            ),
            (
                lambda one: replace(one, vectors=None, similarities=[2.0, *[0.5] * 199]),
                "Neighbour 0 .* has no cosine similarity: 2.0",
            ),
            (
                lambda one: replace(one, vectors=None, similarities=[np.nan] * 200),
                "has no cosine similarity: nan",
            ),
            (lambda one: replace(one, vectors=np.zeros((200, 3))), r"the shape \(200, 3\)"),
            (
                lambda one: replace(one, vectors=np.zeros_like(np.asarray(one.vectors))),
                "a finite non-zero vector",
            ),
        ],
    )
    def test_a_list(
        self, change: Any, reason: str, retriever: Retriever, embeddings: Embeddings
    ) -> None:
        plain = found_by(retriever, embeddings.directions[0])
        with pytest.raises(InvalidVector, match=reason):
            decide_list(retriever, query(embeddings), change(plain), TERMS)

    def test_a_source_that_was_not_calibrated_with(
        self, retriever: Retriever, embeddings: Embeddings
    ) -> None:
        plain = found_by(retriever, embeddings.directions[0])
        with pytest.raises(UnknownSource):
            decide_list(retriever, query(embeddings), plain, replace(TERMS, source="nowhere"))


def _some(neighbours: NeighbourList, n: int) -> NeighbourList:
    return NeighbourList(
        neighbours.ids[:n], neighbours.labels[:n], vectors=np.asarray(neighbours.vectors)[:n]
    )


def test_of_a_gallery_without_calibration_any_list_is_taken(
    uncalibrated_bundle: Path, embeddings: Embeddings
) -> None:
    retriever = open_bundle(uncalibrated_bundle, "cpu").retriever
    plain = _some(found_by(retriever, embeddings.directions[0]), 5)
    given = query(embeddings, features=None)
    assert decide_list(retriever, given, plain, TERMS).decision.verdict == "not_calibrated"
