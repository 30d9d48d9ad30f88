"""A posterior on vectors that another system has made, with a gallery and its calibration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.configuration.build import BuildConfig, load_config
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet, Splits
from index_builder.indexing.sources import open_vectors
from index_builder.pipeline.build import build_gallery, splits_of
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from index_builder.vectors.frozen_graph import write_declared_encoder
from model_store import Retriever, VectorQuery, open_bundle
from model_store.bundles.bundle import Bundle
from model_store.bundles.manifest import ENCODER_FILE
from model_store.decision import Calibration
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import DatasetError, InvalidVector, TooManyBadImages
from model_store.gallery import open_gallery
from model_store.queries import predictive_of
from service.app import create_app
from service.settings import Settings
from tests.index_builder.foreign_encoders.test_onnx_graphs import N_FEATURES, SIDE, brought, linear
from tests.support.build_command import vouch_build
from tests.support.local_client import LocalClient
from tests.support.narrowing import not_none
from tests.support.vector_galleries import DIM, clusters, write_items

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table of vectors, and the bundle that `all` has made of it."""
    where = tmp_path_factory.mktemp("posterior")
    vectors, labels = clusters(0)
    np.save(where / "vectors.npy", vectors)
    write_items(where / "items.jsonl", labels, price=list(range(len(labels))))
    done = vouch_build(
        *("all", "--vectors", "vectors.npy", "--items", "items.jsonl"),
        *("--encoder-name", "theirs"),
        cwd=where,
    )
    assert done.returncode == 0, done.stderr
    assert "The first result is right for " in done.stderr
    return where


@pytest.fixture(scope="module")
def bundle(where: Path) -> Bundle:
    return open_bundle(where / "bundles" / "vectors", "cpu", threads=1)


def test_a_vector_gets_mean_and_variance_and_a_calibrated_answer(bundle: Bundle) -> None:
    retriever = bundle.retriever
    assert retriever.posterior.startswith("laplace")
    queries, labels = clusters(2, 3)
    right, matches = 0, 0
    for query, label in zip(queries, labels, strict=True):
        predictive = predictive_of(retriever, VectorQuery(query))
        assert predictive.spherical_variance > 0
        answer = retriever.find(predictive, 1)
        if answer.decision.verdict == "match":
            matches += 1
            right += answer.matches[0].label == label
    assert matches > len(queries) / 2
    assert right >= 0.95 * matches
    item = retriever.gallery.items(np.array([0]))[0]
    assert item.metadata == {"price": int(item.id[1:])}
    assert bundle.manifest.samples == ()


def test_it_is_served_with_its_variance(bundle: Bundle) -> None:
    query, [label] = clusters(7, 1)[0][0], clusters(7, 1)[1][:1]
    asked = {"mean": query.tolist(), "limit": 100}
    assert bundle.retriever.calibration is not None
    n = bundle.retriever.calibration.n_candidates
    wanted = bundle.retriever.find(predictive_of(bundle.retriever, VectorQuery(query)), n)
    with LocalClient(create_app(Settings(decoders=0), [bundle])) as client:
        answer = client.post("/v1/galleries/vectors/search/vector", json=asked).json()
        assert answer["query"]["uncertainty"]["method"].startswith("laplace")
        assert answer["query"]["uncertainty"]["value"] == pytest.approx(
            wanted.uncertainty, rel=1e-6
        )
        assert answer["results"][0]["label"] == label
        assert answer["results"][0]["variance"] > 0
        for one, match in zip(answer["results"], wanted.matches, strict=False):
            assert one["match_probability"] == pytest.approx(match.match_probability, abs=1e-6)
        # Another store has the directions of the gallery; its neighbours are decided alike.
        listed = [
            {"id": one.id, "label": one.label, "similarity": one.similarity}
            for one in wanted.matches
        ]
        decided = client.post(
            "/v1/galleries/vectors/decide", json={"mean": query.tolist(), "neighbours": listed}
        ).json()
        assert decided["verdict"] == answer["verdict"]
        assert decided["no_match_probability"] == pytest.approx(
            answer["no_match_probability"], abs=1e-6
        )
        response = client.post("/v1/galleries/vectors/search/vector", json={"mean": [1.0, 2.0]})
        assert (response.status_code, response.json()["code"]) == (422, "invalid_vector")


def test_other_vectors_are_indexed_with_the_encoder_that_was_made(
    where: Path, bundle: Bundle
) -> None:
    vectors, labels = clusters(4, 2)
    np.save(where / "more.npy", vectors)
    write_items(where / "more.jsonl", labels)
    encoder = where / "bundles" / "vectors"
    done = vouch_build(
        *("index", "more.npy", "--items", "more.jsonl", "--encoder", str(encoder)), cwd=where
    )
    assert done.returncode == 0, done.stderr
    gallery = open_bundle(where / "bundles" / "more", "cpu", threads=1).retriever.gallery
    found = bundle.retriever.encoder.encode(vectors)
    rows = np.array([gallery.row(f"i{number:04d}") for number in range(len(vectors))])
    np.testing.assert_allclose(gallery.directions(rows), found.directions, atol=1e-6)
    assert vouch_build("doctor", "bundles/more", cwd=where).returncode == 0


def test_a_trained_head_takes_cached_features(where: Path) -> None:
    done = vouch_build(
        *("encoder", "--vectors", "vectors.npy", "--encoder-name", "theirs", "--out", "declared"),
        cwd=where,
    )
    assert done.returncode == 0, done.stderr
    config = where / "head.toml"
    config.write_text(
        'name = "head"\n[dataset]\nkind = "vectors"\n'
        f'path = "{where}/vectors.npy"\nitems = "{where}/items.jsonl"\n'
        f'[network]\ntrunk = "onnx"\nencoder = "{where}/declared"\nembedding_dim = 8\n'
        "[training]\nepochs = 2\nlabels_per_batch = 20\nimages_per_label = 4\n"
        '[posterior]\nmethod = "bayesian_triplet"\n'
    )
    build, run = load_config(config), Run(where / "head")
    splits = splits_of(build)
    for step in (train_step, fit_step, export_step):
        step(build, run, splits)
    encoder = OnnxEncoder(run.staging / ENCODER_FILE, "cpu", 1)
    assert encoder.metadata.posterior == "bayesian_triplet_diagonal_gaussian"
    found = encoder.encode(clusters(0)[0][:5])
    assert found.mean.shape == (5, 8)
    assert (found.variance > 0).all()
    np.testing.assert_array_equal(found.features, clusters(0)[0][:5])


def test_images_and_their_features_get_the_same_answers(tmp_path: Path) -> None:
    """An encoder of images with a posterior, and one of its features with the same posterior."""
    pixels, labels = drawn(np.random.default_rng(0), 30)
    of_images, _ = brought(linear(tmp_path / "a.onnx"))
    before = OnnxEncoder(of_images.directory / ENCODER_FILE, "cpu", 1)
    np.save(tmp_path / "features.npy", before.encode(pixels).features)
    table = open_vectors(tmp_path / "features.npy", write_items(tmp_path / "i.jsonl", labels))
    write_declared_encoder(tmp_path / "declared.onnx", table.table.described("theirs"))
    vectors = table.labelled_vectors()
    images = LabelledImages(
        vectors.ids, vectors.labels, lambda row, _: pixels[row], np.arange(len(labels))
    )
    one = built(tmp_path / "images", of_images.directory, images)
    other = built(tmp_path / "vectors", tmp_path / "declared.onnx", vectors, one.calibration)
    queries, _ = drawn(np.random.default_rng(1), 5)
    wanted = one.encoder.encode(queries)
    features = before.encode(queries).features
    found = other.encoder.encode(features)
    for part in ("mean", "variance", "features"):
        ours, theirs = getattr(found, part), getattr(wanted, part)
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max(), part
    for predictive, row in zip(one.predictives(wanted), features, strict=True):
        by_image = one.find(predictive, 5)
        by_vector = other.find(predictive_of(other, VectorQuery(row)), 5)
        assert [match.id for match in by_vector.matches] == [match.id for match in by_image.matches]
        for match, same in zip(by_vector.matches, by_image.matches, strict=True):
            # The features are rounded otherwise. The weights of the signals multiply this, and the
            # last principal directions of the detector, of nearly equal variance, turn.
            assert match.match_probability == pytest.approx(same.match_probability, abs=4e-3)


def drawn(generator: np.random.Generator, n_each: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Images (n, SIDE, SIDE, 3) of eight colours, with noise, and their labels."""
    colours = np.random.default_rng(7).integers(40, 216, (8, 1, 1, 1, 3))
    noise = generator.normal(0, 25, (8, n_each, SIDE, SIDE, 3))
    images = (colours + noise).clip(0, 255).astype(np.uint8).reshape(-1, SIDE, SIDE, 3)
    return images, [f"l{row // n_each}" for row in range(len(images))]


def built(
    directory: Path, encoder: Path, images: LabelledImages, known: Calibration | None = None
) -> Retriever:
    """A posterior on an encoder, a gallery of two images in three, and a calibration of the rest.

    Parameters
    ----------
    known : in its place, that of the same posterior.
    """
    config = BuildConfig.model_validate(
        {
            "name": "x",
            "dataset": {"kind": "folder", "path": "."},
            "network": {
                "trunk": "onnx",
                "encoder": encoder,
                "last_layer": "whitening",
                "embedding_dim": N_FEATURES,
            },
            "training": {"epochs": 0},
        }
    )
    kept = images.at(np.flatnonzero(np.arange(len(images)) % 3))
    queries = QuerySet(images.at(range(0, len(images), 3)), images.at([]), None)
    splits = Splits(kept, kept.at(range(40, 160)), kept.at(range(40)), queries, queries)
    run = Run(directory)
    for step in (train_step, fit_step, export_step):
        step(config, run, splits)
    fitted = OnnxEncoder(run.staging / ENCODER_FILE, "cpu", 1)
    build_gallery(directory / "index", run.staging, fitted, kept)
    gallery = open_gallery(run.staging)
    if known is None:
        inputs = GalleryQueries(fitted, gallery, kept, queries, 0, are_views=False, unseen=False)
        known = calibrate_gallery(inputs, config.calibration)
    return Retriever(fitted, gallery, replace(known, encoder_fingerprint=fitted.fingerprint))


class TestRefused:
    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            (VectorQuery(np.ones(DIM - 1)), rf"shape \({DIM - 1},\), wanted \({DIM},\)"),
            (VectorQuery([np.nan] * DIM), "`mean` has nan at place 0"),
            (VectorQuery(np.zeros(DIM)), "it has no direction"),
            (VectorQuery(np.ones(DIM), np.ones(DIM)), "have no `variance`"),
            (VectorQuery(np.ones(DIM), features=np.ones(DIM)), "have no `features`"),
        ],
    )
    def test_a_query_that_is_no_vector_of_theirs(
        self, query: VectorQuery, reason: str, bundle: Bundle
    ) -> None:
        with pytest.raises(InvalidVector, match=reason):
            predictive_of(bundle.retriever, query)

    def test_a_table_without_labels_or_with_an_id_twice(self, tmp_path: Path) -> None:
        np.save(tmp_path / "v.npy", clusters(0)[0])
        with pytest.raises(DatasetError, match="row 1: there is no label"):
            open_vectors(tmp_path / "v.npy", None).labelled_vectors()
        rows = [{"id": "a", "label": "x"}] * len(clusters(0)[0])
        (tmp_path / "i.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(DatasetError, match=r"'a' is the id of two items: .* line 1, and"):
            open_vectors(tmp_path / "v.npy", tmp_path / "i.jsonl").labelled_vectors()

    def test_rows_that_point_nowhere_are_left_out(self, tmp_path: Path) -> None:
        vectors, labels = clusters(0)
        vectors[5, 3], vectors[7] = np.nan, 0
        vectors[9] = vectors[8]
        np.save(tmp_path / "v.npy", vectors)
        items = write_items(tmp_path / "items.jsonl", labels)
        found = open_vectors(tmp_path / "v.npy", items).labelled_vectors()
        assert {"i0005", "i0007"}.isdisjoint(found.ids)
        assert len(found) == len(vectors) - 2
        groups = dict(zip(found.ids, not_none(found.groups), strict=True))
        assert groups["i0008"] == groups["i0009"] != groups["i0010"]

    def test_vectors_of_one_number_are_refused(self, tmp_path: Path) -> None:
        np.save(tmp_path / "v.npy", np.ones((9, 1), np.float32))
        with pytest.raises(DatasetError, match=r"The vectors in v\.npy have one number"):
            open_vectors(tmp_path / "v.npy", None).labelled_vectors()

    def test_a_table_with_many_rows_that_point_nowhere_is_refused(self, tmp_path: Path) -> None:
        vectors, labels = clusters(0)
        vectors[: len(vectors) // 2] = np.nan
        np.save(tmp_path / "v.npy", vectors)
        items = write_items(tmp_path / "items.jsonl", labels)
        with pytest.raises(TooManyBadImages, match="at most 20 % may fail; for example 'i0000'"):
            open_vectors(tmp_path / "v.npy", items).labelled_vectors()

    def test_vectors_of_another_length_and_images(self, where: Path, tmp_path: Path) -> None:
        of_images = str(brought(linear(tmp_path / "a.onnx"))[0].directory)
        np.save(tmp_path / "short.npy", np.ones((30, 3)))
        theirs = str(where / "bundles" / "vectors")
        for command, source, encoder, reason in (
            ("index", "short.npy", theirs, "the encoder of 'theirs' takes"),
            ("index", str(where / "vectors.npy"), of_images, "the encoder takes images"),
            ("index", str(tmp_path), theirs, "the source holds images"),
        ):
            done = vouch_build(command, source, "--encoder", encoder, cwd=tmp_path)
            assert done.returncode == 1
            assert reason in " ".join(done.stderr.split()), done.stderr

    def test_vectors_with_a_variance_of_their_own(self, tmp_path: Path) -> None:
        vectors, labels = clusters(0)
        np.savez(tmp_path / "v.npz", allow_pickle=False, mean=vectors, variance=vectors**2)
        write_items(tmp_path / "i.jsonl", labels)
        table = ("--vectors", "v.npz", "--items", "i.jsonl", "--encoder-name", "theirs")
        done = vouch_build("all", *table, cwd=tmp_path)
        assert done.returncode == 1
        assert "already have a variance" in " ".join(done.stderr.split())
