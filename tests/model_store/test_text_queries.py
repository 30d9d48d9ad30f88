"""Queries in words, on digits whose names point to where their images lie."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.bundles.bundle import Bundle, open_bundle, open_parts
from model_store.decision.calibration import Calibration
from model_store.encoder.text import OnnxTextEncoder
from model_store.errors import BundleMismatch, InvalidText, OrderUnavailable, TextUnavailable
from model_store.messages import MAX_TEXT_CHARACTERS
from model_store.predictive import Predictive
from model_store.queries import embed_text, search_text
from model_store.retriever import Retriever
from tests.support.word_towers import (
    LENGTH,
    with_word_tower,
    words_of_digits,
    write_word_tower,
)


@pytest.fixture(scope="module")
def plain(digits_bundle: Path) -> Bundle:
    """The digits, calibrated, without a text tower."""
    return open_bundle(digits_bundle, "cpu", threads=1)


@pytest.fixture(scope="module")
def worded(plain: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """The digits with a tower that knows their names."""
    directory = with_word_tower(plain, tmp_path_factory.mktemp("worded") / "bundles")
    return open_parts(directory, "cpu", threads=1)


def test_a_name_finds_its_digit(worded: Retriever) -> None:
    answer = search_text(worded, "a handwritten seven", limit=5)
    assert {match.label for match in answer.matches} == {"7"}
    vector = mean_direction(worded, "7")
    wanted = worded.gallery.candidates(vector[None], 5)
    np.testing.assert_allclose(
        [match.similarity for match in answer.matches], wanted.similarities[0], atol=0.02
    )


def mean_direction(retriever: Retriever, label: str) -> np.ndarray:
    rows = np.flatnonzero(
        retriever.gallery.label_codes(np.arange(retriever.gallery.n_items))
        == retriever.gallery.labels.index(label)
    )
    total = retriever.gallery.directions(rows).sum(axis=0)
    direction: np.ndarray = total / np.linalg.norm(total)
    return direction.astype(np.float32)


def test_texts_are_never_judged_by_the_calibration_of_images(worded: Retriever) -> None:
    assert worded.calibration is not None
    answer = search_text(worded, "seven")
    decision = answer.decision
    assert decision.verdict == "not_calibrated"
    assert "--captions" in (decision.reason or "")
    assert decision.no_match_probability is None
    assert decision.result_set is None
    assert decision.assessment.outlier_p_value is None
    assert math.isnan(answer.predictive.outlier_score)
    assert all(match.match_probability is None for match in answer.matches)
    # Nor by whoever passes its embedding on.
    assert worded.find(answer.predictive, 3).decision.verdict == "not_calibrated"
    with pytest.raises(OrderUnavailable, match=r"for texts \(`vouch-build calibrate BUNDLES --cap"):
        search_text(worded, "seven", order="probability")


def test_images_are_judged_as_without_the_tower(plain: Bundle, worded: Retriever) -> None:
    image = (plain.directory / plain.manifest.samples[0].file).read_bytes()
    one, other = plain.retriever.search(image), worded.search(image)
    assert one.decision.verdict == other.decision.verdict != "not_calibrated"
    assert one.matches == other.matches


def test_no_uncertainty_is_invented(worded: Retriever) -> None:
    answer = search_text(worded, "seven")
    assert not answer.predictive.has_uncertainty
    assert all(match.rank_stability is None for match in answer.matches)
    assert all(match.rank_confidence is None for match in answer.matches)


def test_a_tower_with_a_variance_has_one(plain: Bundle, tmp_path: Path) -> None:
    directory = with_word_tower(plain, tmp_path / "bundles", variance=1e-4)
    retriever = open_parts(directory, "cpu", threads=1)
    answer = search_text(retriever, "seven")
    assert answer.predictive.has_uncertainty
    assert answer.predictive.spherical_variance > 0
    assert all(match.rank_stability is not None for match in answer.matches)
    assert retriever.for_kind("text").posterior == "constant"


def test_a_predictive_remembers_its_kind(worded: Retriever) -> None:
    found = embed_text(worded, "seven").predictive
    again = Predictive.from_bytes(found.to_bytes())
    assert again is not None
    assert (again.kind, again.has_uncertainty) == ("text", False)
    np.testing.assert_array_equal(again.direction, found.direction)


def test_a_text_that_is_cut_off_says_so(worded: Retriever) -> None:
    assert embed_text(worded, "seven").warnings == ()
    found = embed_text(worded, "seven " * (LENGTH + 1))
    assert found.n_tokens == LENGTH
    assert "its end was ignored" in found.warnings[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" \n\t", "is empty"),
        ("x" * (MAX_TEXT_CHARACTERS + 1), "has 2,001 characters; at most 2,000"),
        ("a \ud800 b", "invalid character at position 2"),
    ],
)
def test_what_is_no_query(worded: Retriever, text: str, reason: str) -> None:
    with pytest.raises(InvalidText, match=reason):
        search_text(worded, text)


def test_a_gallery_without_a_tower_says_so(plain: Bundle) -> None:
    with pytest.raises(TextUnavailable, match="no text encoder"):
        search_text(plain.retriever, "seven")


def test_parts_of_another_encoder_are_refused(plain: Bundle, tmp_path: Path) -> None:
    retriever = plain.retriever
    write_word_tower(tmp_path, words_of_digits(plain), "0" * 64)
    with pytest.raises(BundleMismatch, match="text encoder was made with encoder 000000000000"):
        Retriever(retriever.encoder, retriever.gallery, None, OnnxTextEncoder(tmp_path))
    write_word_tower(tmp_path, words_of_digits(plain), retriever.encoder.fingerprint)
    tower, of_images = OnnxTextEncoder(tmp_path), retriever.calibration
    with pytest.raises(BundleMismatch, match="calibration of texts was made with encoder"):
        Retriever(retriever.encoder, retriever.gallery, None, tower, of_images)
    assert of_images is not None
    own = replace(of_images, encoder_fingerprint=tower.fingerprint)
    with pytest.raises(BundleMismatch, match="the encoder here is none"):
        Retriever(retriever.encoder, retriever.gallery, None, None, own)


def test_both_calibrations_lie_side_by_side(plain: Bundle, tmp_path: Path) -> None:
    of_images = plain.retriever.calibration
    assert of_images is not None
    of_images.save(tmp_path)
    assert Calibration.load(tmp_path, "text") is None
    replace(of_images, n_queries=7).save(tmp_path, "text")
    of_texts = Calibration.load(tmp_path, "text")
    again = Calibration.load(tmp_path)
    assert of_texts is not None
    assert again is not None
    assert (again.n_queries, of_texts.n_queries) == (of_images.n_queries, 7)
