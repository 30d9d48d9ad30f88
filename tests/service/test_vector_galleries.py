"""A gallery of vectors over HTTP: it is searched with vectors, and says so where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from service.encoding.process import EncoderProcess
from tests.service.conftest import StartClient
from tests.support.vector_galleries import DIM, clusters, index_vectors, write_items

pytestmark = pytest.mark.process

GALLERY = "/v1/galleries/vec"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("vectors")
    vectors, labels = clusters(0)
    np.save(where / "vectors.npy", vectors)
    items = write_items(where / "items.jsonl", labels)
    done = index_vectors(where, where / "vectors.npy", "--items", items, "--calibrate")
    assert done.returncode == 0, done.stderr
    return where / "bundles" / "vec"


@pytest.fixture(scope="module")
def vectors_bundle(root: Path) -> Bundle:
    return open_bundle(root, "cpu", threads=1)


@pytest.fixture
def client(start: StartClient, vectors_bundle: Bundle) -> TestClient:
    return start(vectors_bundle)


def test_it_is_searched_with_vectors(client: TestClient) -> None:
    queries, [label, *_] = clusters(7, 1)
    answer = client.post(f"{GALLERY}/search/vector", json={"mean": queries[0].tolist()}).json()
    assert answer["verdict"] == "match"
    assert answer["results"][0]["label"] == label
    assert answer["results"][0]["match_probability"] > 0.5
    assert {one["thumbnail_url"] for one in answer["results"]} == {None}
    # The vectors have no variance, so nobody knows how sure they are.
    unknown = dict.fromkeys(("value", "percentile", "level", "epistemic", "aleatoric")) | {
        "method": "deterministic"
    }
    assert answer["query"]["uncertainty"] == unknown
    assert {one["rank_stability"] for one in answer["results"]} == {None}


def test_images_are_refused(client: TestClient, digit: bytes) -> None:
    files = {"image": ("digit.png", digit, "image/png")}
    for path in ("search", "embed", "assess"):
        response = client.post(f"{GALLERY}/{path}", files=files)
        assert response.status_code == 422, response.text
        problem = response.json()
        assert problem["code"] == "images_not_taken"
        assert "send the vector" in problem["detail"]
        assert "To add items, run `vouch-build index`" in problem["detail"]


def test_its_items_have_no_pictures(client: TestClient) -> None:
    item = client.get(f"{GALLERY}/items/i0100").json()
    assert item["thumbnail_url"] is None
    response = client.get(f"{GALLERY}/items/i0100/thumbnail")
    assert (response.status_code, response.json()["code"]) == (404, "item_not_found")


def test_an_image_does_not_become_an_item(client: TestClient, digit: bytes) -> None:
    response = client.put(f"{GALLERY}/items/new", files={"image": ("a.png", digit, "image/png")})
    assert response.status_code in {409, 422}, response.text


def test_the_process_of_its_encoder_takes_vectors(root: Path) -> None:
    opened = open_bundle(root, "cpu", 1, EncoderProcess)
    try:
        query = clusters(7, 1)[0][:1]
        np.testing.assert_array_equal(opened.retriever.encoder.encode(query).mean, query)
        assert opened.retriever.encoder.dim == DIM
    finally:
        opened.retriever.encoder.close()
