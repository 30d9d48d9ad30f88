"""Galleries of vectors that another system has made: no image anywhere."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import feather, parquet

from index_builder.indexing.blocks import Block, Place
from index_builder.indexing.prepare import prepare_vectors
from index_builder.indexing.sources import open_source
from index_builder.vectors import table
from index_builder.vectors.frozen_graph import write_declared_encoder
from index_builder.vectors.table import PARTS, open_table
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.encoder.contract import VectorInput
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import DatasetError, ImagesNotTaken, InvalidVector
from model_store.queries import VectorQuery, predictive_of
from tests.support.collection_files import lines
from tests.support.vector_galleries import DIM, clusters, index_vectors, write_items

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an indexed and calibrated gallery of vectors; one of them is no vector."""
    where = tmp_path_factory.mktemp("vectors")
    vectors, labels = clusters(0)
    vectors[5, 3] = np.nan
    np.save(where / "vectors.npy", vectors)
    items = write_items(where / "items.jsonl", labels, price=list(range(len(labels))))
    done = index_vectors(where, where / "vectors.npy", "--items", items, "--calibrate")
    assert done.returncode == 0, done.stderr
    return where


@pytest.fixture(scope="module")
def bundle(where: Path) -> Bundle:
    return open_bundle(where / "bundles" / "vec", "cpu", threads=1)


def test_a_query_finds_what_brute_force_finds(where: Path, bundle: Bundle) -> None:
    gallery = bundle.retriever.gallery
    vectors, labels = clusters(0)
    names = [f"i{row:04d}" for row in range(len(labels))]
    kept = [row for row in range(len(names)) if row != 5]
    assert gallery.n_items == len(kept)
    some = vectors[kept] / np.linalg.norm(vectors[kept], axis=1, keepdims=True)
    for query in clusters(1, 1)[0]:
        predictive = predictive_of(bundle.retriever, VectorQuery(query))
        answer = bundle.retriever.find(predictive, 5)
        nearest = np.argsort(-(some @ query), kind="stable")[:5]
        assert [match.id for match in answer.matches] == [names[kept[n]] for n in nearest]
        first = answer.matches[0]
        assert first.similarity == pytest.approx(
            float(some[nearest[0]] @ query) / float(np.linalg.norm(query)), abs=1e-6
        )
        assert first.metadata == {"price": kept[nearest[0]]}


def test_the_row_that_is_no_vector_is_put_aside(where: Path) -> None:
    [line] = lines(where / "runs/vec/index/quarantine.jsonl")
    assert line["id"] == "i0005"
    assert "not finite" in line["reason"]


def test_answers_are_calibrated_and_aliens_told(bundle: Bundle) -> None:
    retriever = bundle.retriever
    queries, labels = clusters(2, 3)
    right, matches = 0, 0
    for query, label in zip(queries, labels, strict=True):
        answer = retriever.find(predictive_of(retriever, VectorQuery(query)), 1)
        if answer.decision.verdict == "match":
            matches += 1
            right += answer.matches[0].label == label
    assert matches > len(queries) / 2
    assert right >= 0.95 * matches
    # Vectors whose numbers have nothing to do with each other are none of this encoder's.
    alien = np.random.default_rng(3).normal(size=(100, DIM)) * queries.std(0) * 3
    verdicts = [
        retriever.find(predictive_of(retriever, VectorQuery(one)), 1).decision.verdict
        for one in alien
    ]
    assert verdicts.count("match") <= 10


def test_the_same_vectors_make_the_same_bundle_whatever_file_they_are_in(
    where: Path, tmp_path: Path
) -> None:
    vectors = np.load(where / "vectors.npy")
    rows = lines(where / "items.jsonl")
    table = pa.table(
        {"vector": list(vectors), **{name: [row[name] for row in rows] for name in rows[0]}}
    )
    parquet.write_table(table, tmp_path / "vectors.parquet", row_group_size=100)
    feather.write_feather(table, str(tmp_path / "vectors.feather"))
    np.savez_compressed(tmp_path / "vectors.npz", mean=vectors.astype(np.float64))
    wanted = (where / "bundles/vec/CURRENT").read_text()
    for name in ("vectors.parquet", "vectors.feather", "vectors.npz"):
        beside = ["--items", where / "items.jsonl"] if name.endswith("npz") else []
        done = index_vectors(tmp_path, tmp_path / name, *beside, "--calibrate")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "bundles/vec/CURRENT").read_text() == wanted


def test_variance_and_features_come_along(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    given = {
        "mean": generator.normal(size=(50, 6)).astype(np.float32),
        "variance": generator.random((50, 6)).astype(np.float32),
        "features": generator.random((50, 9)).astype(np.float32),
    }
    np.savez(tmp_path / "three.npz", allow_pickle=False, **given)
    described = open_table(tmp_path / "three.npz").described("theirs")
    assert described == VectorInput("theirs", 6, with_variance=True, n_features=9)
    write_declared_encoder(tmp_path / "encoder.onnx", described)
    encoder = OnnxEncoder(tmp_path / "encoder.onnx", "cpu", 1)
    embeddings = encoder.encode(np.hstack([given[name] for name in PARTS]))
    for name in PARTS:
        np.testing.assert_array_equal(getattr(embeddings, name), given[name])
    assert encoder.metadata.posterior == "given"
    assert index_vectors(tmp_path, tmp_path / "three.npz").returncode == 0
    gallery = open_bundle(tmp_path / "bundles/vec", "cpu", threads=1).retriever.gallery
    rows = np.array([gallery.row(str(number)) for number in range(50)])
    lengths = np.linalg.norm(given["mean"], axis=1, keepdims=True)
    np.testing.assert_allclose(
        gallery.variances(rows), given["variance"] / lengths**2, rtol=2e-2, atol=1e-4
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_one_file_are_read_some_rows_at_a_time(
    tmp_path: Path, save: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "AT_ONCE", 100)
    generator = np.random.default_rng(0)
    mean, variance = generator.normal(size=(2, 20_000, 16)).astype(">f4")
    save(tmp_path / "v.npz", variance=variance, mean=mean, other=np.ones(3))
    opened = open_table(tmp_path / "v.npz")
    found = []
    tracemalloc.start()
    try:
        for rows, fields in opened.rows():
            found.append(rows.sum(axis=1))
            assert (len(rows), fields) == (100, None)
        assert tracemalloc.get_traced_memory()[1] < 2**20  # of 2.4 MiB
    finally:
        tracemalloc.stop()
    wanted = mean.sum(axis=1) + variance.sum(axis=1)
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=1e-4)


def test_damage_behind_the_first_rows_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", mean=np.ones((5_000, 8), np.float32))
    content = bytearray((tmp_path / "v.npz").read_bytes())
    content[100_000] ^= 1
    (tmp_path / "v.npz").write_bytes(content)
    opened = open_table(tmp_path / "v.npz")
    with pytest.raises(DatasetError, match=r"no NumPy file, or is truncated"):
        list(opened.rows())


def test_columns_that_follow_one_another_are_read_too(tmp_path: Path) -> None:
    mean = np.random.default_rng(0).normal(size=(5_000, 3)).astype("<f4")
    np.savez(tmp_path / "v.npz", mean=np.asfortranarray(mean), variance=mean**2)
    [first, second] = open_table(tmp_path / "v.npz").rows()
    found = np.concatenate([first[0], second[0]])
    np.testing.assert_array_equal(found, np.hstack([mean, mean**2]))


def test_vectors_are_read_by_opening_their_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype("<f4")
    (tmp_path / "v.f32").write_bytes(rows.tobytes())
    places = tuple(Place(str(tmp_path / "v.f32"), 16 * n, 16, 0) for n in (3, 0, 8))
    opened: list[Path] = []
    open_file = Path.open

    def noted(path: Path, mode: str) -> Any:
        opened.append(path)
        return open_file(path, mode)

    monkeypatch.setattr(Path, "open", noted)
    prepared = prepare_vectors(Block(0, ("a", "b", "c"), places), VectorInput("theirs", 4))
    np.testing.assert_array_equal(prepared.images, rows[[3, 0, 8]])
    assert len(opened) == 1


def test_a_declaration_has_one_fingerprint(tmp_path: Path) -> None:
    fingerprints = set()
    for name, declared in {"a": 6, "b": 6, "c": 7}.items():
        write_declared_encoder(tmp_path / name, VectorInput("theirs", declared))
        fingerprints.add(OnnxEncoder(tmp_path / name, "cpu", 1).fingerprint)
    assert len(fingerprints) == 2


def test_what_needs_pixels_says_so(bundle: Bundle) -> None:
    with pytest.raises(ImagesNotTaken, match="vectors of 'theirs'"):
        bundle.retriever.search(b"anything")
    with pytest.raises(InvalidVector, match=r"shape \(23,\), wanted \(24,\)"):
        predictive_of(bundle.retriever, VectorQuery(np.ones(23)))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mean": np.ones(5)}, r"mean has the shape \(5,\)"),
        ({"mean": np.ones((0, 5))}, "a row for each of 0"),
        ({"mean": np.array([["a", "b"]])}, "wanted numbers"),
        ({"mean": np.ones((3, 5)), "variance": np.ones((3, 4))}, "variance has 4 numbers"),
        ({"mean": np.ones((3, 5)), "features": np.ones((2, 4))}, "features has the shape"),
        ({"embedding": np.ones((3, 5))}, "has the arrays 'embedding'"),
        ({"mean": np.ones((2, 20_000))}, "20,000 numbers a row"),
    ],
)
def test_arrays_that_are_no_vectors_are_refused(
    tmp_path: Path, arrays: dict[str, NDArray[Any]], message: str
) -> None:
    np.savez(tmp_path / "bad.npz", allow_pickle=False, **arrays)
    with pytest.raises(DatasetError, match=message):
        open_table(tmp_path / "bad.npz")


def test_rows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"vector": [[1.0, 2.0], [1.0]]}), tmp_path / "bad.parquet")
    with pytest.raises(DatasetError, match="row 2: vector has 1 numbers"):
        open_table(tmp_path / "bad.parquet")
    parquet.write_table(pa.table({"vector": [[1.0, 2.0], None]}), tmp_path / "bad.parquet")
    with pytest.raises(DatasetError, match="row 2: vector has None"):
        open_table(tmp_path / "bad.parquet")


def test_a_file_of_another_kind_is_refused_without_the_advice_of_numpy(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_bytes(b"no array at all")
    np.save(tmp_path / "objects.npy", np.array([{}, {}], object))
    for name in ("text.npy", "objects.npy"):
        with pytest.raises(DatasetError, match=r"is no NumPy file.* Python objects") as refused:
            open_table(tmp_path / name)
        assert "allow_pickle" not in str(refused.value)


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.parquet", "v.feather"])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    path, vectors = tmp_path / name, clusters(0)[0]
    if name.endswith("npy"):
        np.save(path, vectors)
    elif name.endswith("npz"):
        np.savez(path, mean=vectors)
    elif name.endswith("parquet"):
        parquet.write_table(pa.table({"vector": list(vectors)}), path)
    else:
        feather.write_feather(pa.table({"vector": list(vectors)}), str(path))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match=r"truncated|no NumPy file"):
        open_table(path)


@pytest.mark.parametrize(("n_lines", "message"), [(3, "has 3 lines"), (6, "more lines")])
def test_items_that_do_not_belong_to_the_rows_are_refused(
    tmp_path: Path, n_lines: int, message: str
) -> None:
    np.save(tmp_path / "v.npy", clusters(0)[0][:5])
    items = write_items(tmp_path / "items.jsonl", ["x"] * n_lines)
    done = index_vectors(tmp_path, tmp_path / "v.npy", "--items", items)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())


def test_vectors_are_no_images(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", clusters(0)[0])
    with pytest.raises(DatasetError, match="--encoder-name NAME"):
        open_source(tmp_path / "v.npy")


def test_vectors_without_labels_do_not_calibrate_themselves(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", clusters(0)[0])
    done = index_vectors(tmp_path, tmp_path / "v.npy", "--calibrate")
    assert done.returncode == 1
    assert "they have no augmented views" in " ".join(done.stderr.split())
