from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from model_store import open_bundle
from model_store.encoder.contract import Embeddings
from model_store.errors import BundleMismatch, CorruptImage, ItemNotFound, NoEmbedding
from model_store.gallery import FaissGallery, write_faiss_gallery
from model_store.retriever import Retriever
from model_store.sphere import base_noise
from tests.laws.encoder_laws import images_for
from tests.laws.gallery_laws import new_items
from tests.support.fakes import FakeEncoder


@pytest.fixture
def retriever(tmp_path: Path) -> Retriever:
    encoder = FakeEncoder()
    images = images_for(encoder, 30, seed=0)
    write_faiss_gallery(tmp_path, encoder.encode(images), new_items(30), encoder.fingerprint)
    return Retriever(encoder, FaissGallery(tmp_path), None)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_image_of_the_gallery_finds_itself(retriever: Retriever) -> None:
    pixels = images_for(FakeEncoder(), 30, seed=0)[12]
    answer = retriever.search(png(pixels), limit=4)
    item = retriever.gallery.item(new_items(30)[12].id)
    first = answer.matches[0]
    assert (first.id, first.label, first.metadata) == (item.id, item.label, dict(item.metadata))
    assert answer.matches[0].similarity == pytest.approx(1, abs=1e-6)
    assert [match.rank for match in answer.matches] == [1, 2, 3, 4]
    assert answer.decision.verdict == "not_calibrated"
    assert all(match.match_probability is None for match in answer.matches)


def test_a_notebook_shows_the_verdict_and_no_markup_of_items(
    retriever: Retriever, digits_bundle: Path
) -> None:
    answer = retriever.search(png(images_for(FakeEncoder(), 30, seed=0)[12]), limit=2)
    shown = answer._repr_html_()
    assert shown.startswith("<p><b>not_calibrated</b></p><table>")
    assert shown.count("<tr>") == 3
    hostile = {"id": "<script>", "label": "a & b", "match_probability": 0.25}
    matches = (answer.matches[0].model_copy(update=hostile),)
    shown = replace(answer, matches=matches)._repr_html_()
    assert "<td>&lt;script&gt;</td><td>a &amp; b</td><td>0.250</td>" in shown
    calibrated = open_bundle(digits_bundle, "cpu").retriever
    sample = next(iter(sorted((digits_bundle / "samples").iterdir()))).read_bytes()
    shown = calibrated.search(sample, limit=1)._repr_html_()
    assert "P(no match) " in shown
    assert "more uncertain than " in shown


def test_an_item_finds_what_its_image_finds_but_itself(retriever: Retriever) -> None:
    """What is stored of an item is its whole embedding, variance included."""
    pixels = images_for(FakeEncoder(), 30, seed=0)[12]
    item = retriever.gallery.item(new_items(30)[12].id)
    as_query, as_item = retriever.search(png(pixels), 29), retriever.similar(item.id, 28)
    assert as_query.matches[0].id == item.id
    for found, expected in zip(as_item.matches, as_query.matches[1:], strict=True):
        assert found.id == expected.id
        assert found.similarity == pytest.approx(expected.similarity, abs=1e-6)
        if expected.rank_confidence is not None and found.rank_confidence is not None:
            assert found.rank_confidence == pytest.approx(expected.rank_confidence, abs=1e-4)
    ours, theirs = as_item.predictive, as_query.predictive
    assert ours.spherical_variance == pytest.approx(theirs.spherical_variance, rel=1e-4)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-4)
    noise = base_noise("samples", 100, len(ours.direction))
    np.testing.assert_allclose(ours.samples(noise), theirs.samples(noise), atol=1e-5)
    assert np.isnan(ours.outlier_score)


def test_of_one_item_nothing_is_like_it(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    images = images_for(encoder, 1, seed=0)
    write_faiss_gallery(tmp_path, encoder.encode(images), new_items(1), encoder.fingerprint)
    alone = Retriever(encoder, FaissGallery(tmp_path), None)
    assert alone.similar(new_items(1)[0].id).matches == ()
    with pytest.raises(ItemNotFound):
        alone.similar("no-such-item")


def test_the_same_bytes_give_the_same_answer(retriever: Retriever) -> None:
    data = png(images_for(FakeEncoder(), 1, seed=9)[0])
    first, second = retriever.search(data), retriever.search(data)
    assert (first.matches, first.decision) == (second.matches, second.decision)


@pytest.mark.parametrize(("mean", "variance"), [(np.nan, 1), (np.inf, 1), (0, 1), (1, np.inf)])
def test_an_embedding_that_cannot_be_compared_is_refused(
    retriever: Retriever, mean: float, variance: float
) -> None:
    dim = retriever.encoder.dim
    embeddings = Embeddings(
        np.full((1, dim), mean, np.float32),
        np.full((1, dim), variance, np.float32),
        np.ones((1, 1), np.float32),
    )
    with pytest.raises(NoEmbedding, match="not finite, or only zeros"):
        retriever.predictives(embeddings)


def test_damaged_bytes_raise(retriever: Retriever) -> None:
    with pytest.raises(CorruptImage):
        retriever.search(png(np.zeros((50, 50, 3), dtype=np.uint8))[:-30])


def test_parts_of_different_encoders_are_refused(retriever: Retriever) -> None:
    with pytest.raises(BundleMismatch, match="gallery was made with encoder"):
        Retriever(FakeEncoder(seed=1), retriever.gallery, None)


def test_a_calibrated_bundle_answers_with_probabilities(digits_bundle: Path) -> None:
    bundle = open_bundle(digits_bundle, provider="cpu")
    assert bundle.name == "digits"
    for sample in bundle.manifest.samples:
        answer = bundle.retriever.search((digits_bundle / sample.file).read_bytes())
        probabilities = [match.match_probability for match in answer.matches]
        assert all(0 <= p <= 1 for p in probabilities if p is not None)
        assert None not in probabilities
        assert answer.decision.assessment.outlier_p_value is not None
    alien = next(s for s in bundle.manifest.samples if "another kind of image" in s.caption)
    verdict = bundle.retriever.search((digits_bundle / alien.file).read_bytes()).decision.verdict
    assert verdict == "out_of_distribution"


def test_alpha_moves_the_flag(digits_bundle: Path) -> None:
    retriever = open_bundle(digits_bundle, provider="cpu").retriever
    data = (digits_bundle / "samples" / "1.png").read_bytes()
    p_value = retriever.search(data).decision.assessment.outlier_p_value
    assert p_value is not None
    assert retriever.search(data, alpha=p_value).decision.verdict == "out_of_distribution"
    below = retriever.search(data, alpha=p_value * 0.99)
    assert below.decision.verdict != "out_of_distribution"


def test_without_a_calibration_the_bundle_still_ranks(uncalibrated_bundle: Path) -> None:
    bundle = open_bundle(uncalibrated_bundle, provider="cpu")
    answer = bundle.retriever.search((uncalibrated_bundle / "samples" / "1.png").read_bytes())
    assert answer.decision.verdict == "not_calibrated"
    assert len(answer.matches) == 10
    assert answer.alpha == 0.05
