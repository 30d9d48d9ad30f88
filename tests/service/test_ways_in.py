"""The same search through every door: a form, a body, JSON, and many at once."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from service.http.limits import FORM_ALLOWANCE, MAX_BATCH, MAX_FILES
from tests.end_to_end.questions import (
    embed,
    picture,
    search,
    search_batch,
    search_json,
    search_raw,
    truncated,
)

StartClient = Callable[..., TestClient]
Search = Callable[..., httpx2.Response]

JSON_PATH = "/v1/galleries/digits/search/json"
RAW_PATH = "/v1/galleries/digits/search/raw"


def said(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what differs from request to request."""
    passing = ("request_id", "cache", "timing_ms", "next_cursor")  # which tells the time
    return {name: value for name, value in answer.items() if name not in passing}


class TestOneImage:
    @pytest.mark.parametrize("door", [search_raw, search_json])
    @pytest.mark.parametrize(
        "options", [{}, {"limit": 3, "alpha": 0.2, "coverage": 0.8, "on_uncertain": "refuse"}]
    )
    def test_every_door_leads_to_the_same_answer(
        self,
        client: TestClient,
        digit: bytes,
        stranger: bytes,
        door: Search,
        options: dict[str, Any],
    ) -> None:
        for image in (digit, stranger):
            through_form = search(client, image, **options).json()
            response = door(client, image, **options)
            assert response.status_code == 200, response.text
            assert said(response.json()) == said(through_form)

    @pytest.mark.parametrize(
        "media_type", ["image/png", "image/nonsense", "application/octet-stream"]
    )
    def test_what_a_body_is_called_does_not_matter_so_long_as_it_may_be_an_image(
        self, client: TestClient, digit: bytes, media_type: str
    ) -> None:
        answer = search_raw(client, digit, media_type=media_type).json()
        assert answer["query"]["image"]["format"] == "PNG"

    def test_a_body_of_no_type_may_be_an_image(self, client: TestClient, digit: bytes) -> None:
        response = client.post(RAW_PATH, content=digit)
        assert "content-type" not in response.request.headers
        assert response.status_code == 200

    def test_a_data_uri_is_what_browsers_make_of_a_file(
        self, client: TestClient, digit: bytes
    ) -> None:
        encoded = base64.b64encode(digit).decode()
        for prefix in ("data:image/png;base64,", "data:;base64,", "data:text/html;base64,"):
            response = client.post(JSON_PATH, json={"image_base64": prefix + encoded})
            assert said(response.json()) == said(search(client, digit).json())

    @pytest.mark.parametrize(
        "text",
        [
            "http://example.com/cat.jpg",
            "file:///etc/passwd",
            "data:image/png,raw",
            "data:image/png;base64,%%%",
            "not base64!",
            "QUJ",
            "QUJD\nREVG",
            "QU=JD",
            "-_-_",
            "Ünïcode",
            "\x00",
        ],
    )
    def test_what_is_not_base64_is_named(self, client: TestClient, text: str) -> None:
        response = client.post(JSON_PATH, json={"image_base64": text})
        assert response.status_code == 422
        [error] = response.json()["errors"]
        assert error["pointer"] == "/body/image_base64"
        assert "base64" in error["detail"]
        assert "URLs are not fetched" in error["detail"]

    def test_a_url_in_place_of_an_image_is_refused_in_words(self, client: TestClient) -> None:
        response = client.post(JSON_PATH, json={"image_url": "http://example.com/cat.jpg"})
        assert response.status_code == 422
        assert "URLs are not fetched" in response.json()["detail"]

    @pytest.mark.parametrize("n_over", [0, 1])
    def test_size_is_known_before_anything_is_decoded(
        self, start: StartClient, n_over: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decoded = []

        def noting(text: str, *, validate: bool) -> bytes:
            decoded.append(text)
            return b"x"

        monkeypatch.setattr("service.http.bodies.base64.b64decode", noting)
        response = search_json(start(max_image_bytes=1000), bytes(1000 + n_over))
        assert response.status_code == (413 if n_over else 415)
        assert len(decoded) == 1 - n_over
        assert not n_over or "1,001 bytes; at most 1,000" in response.json()["detail"]

    def test_base64_of_the_largest_image_fits_into_a_body(self, start: StartClient) -> None:
        largest = 3 * FORM_ALLOWANCE
        client = start(max_image_bytes=largest)
        image = picture("PNG")
        assert search_json(client, image + bytes(largest - len(image))).status_code == 200
        assert search_json(client, bytes(largest + 1)).status_code == 413
        assert search_json(client, bytes(2 * largest)).status_code == 413

    @pytest.mark.parametrize("door", [search_raw, search_json])
    @pytest.mark.parametrize(
        ("image", "status"), [(b"", 400), (b"text", 415), (truncated(), 422)], ids=str
    )
    def test_a_bad_image_is_bad_through_every_door(
        self, client: TestClient, door: Search, image: bytes, status: int
    ) -> None:
        response = door(client, image)
        through_form = search(client, image).json()
        assert response.status_code == status
        assert (response.json()["code"], response.json()["detail"]) == (
            through_form["code"],
            through_form["detail"],
        )

    @pytest.mark.parametrize("door", [search, search_raw, search_json])
    @pytest.mark.parametrize(
        "wrong",
        [{"limit": 0}, {"limit": 101}, {"alpha": 1}, {"coverage": 0}, {"on_uncertain": "panic"}],
        ids=str,
    )
    def test_options_have_the_same_bounds_everywhere(
        self, client: TestClient, digit: bytes, door: Search, wrong: dict[str, Any]
    ) -> None:
        response = door(client, digit, **wrong)
        assert response.status_code == 422
        [error] = response.json()["errors"]
        assert error["pointer"].split("/")[-1] == next(iter(wrong))


class TestABatch:
    def test_each_file_is_answered_as_if_it_were_alone(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        images = [(bundle.directory / s.file).read_bytes() for s in bundle.manifest.samples]
        together = search_batch(client, images, limit=4).json()
        assert [item["index"] for item in together["items"]] == list(range(len(images)))
        for place, (item, image) in enumerate(zip(together["items"], images, strict=True)):
            assert item["file_name"] == f"{place}.png"
            assert (item["status"], item["problem"]) == (200, None)
            assert said(item["answer"]) == said(search(client, image, limit=4).json())
            assert item["answer"]["request_id"] == together["request_id"]

    def test_a_bad_file_harms_no_other(
        self, client: TestClient, digit: bytes, stranger: bytes
    ) -> None:
        images = [b"", digit, b"text", truncated(), stranger]
        response = search_batch(client, images)
        assert response.status_code == 200
        items = response.json()["items"]
        assert [item["status"] for item in items] == [400, 200, 415, 422, 200]
        for item, image in zip(items, images, strict=True):
            alone = search(client, image).json()
            if item["status"] == 200:
                assert said(item["answer"]) == said(alone)
            else:
                assert item["answer"] is None
                assert item["problem"]["code"] == alone["code"]
                assert item["problem"]["detail"] == alone["detail"]
                assert item["problem"]["status"] == item["status"]
                assert item["problem"]["request_id"] == response.headers["x-request-id"]

    def test_a_failure_nobody_foresaw_harms_no_other(
        self, client: TestClient, bundle: Bundle, digit: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = search(client, digit).json()  # and is cached: the encoder is not asked again

        def fail(images: object, at_once: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(bundle.retriever.encoder, "encode", fail)
        response = search_batch(client, [picture("PNG", 9, 9), digit])
        assert "secret" not in response.text
        lost, found = response.json()["items"]
        assert (lost["status"], lost["problem"]["code"]) == (500, "internal_error")
        assert said(found["answer"]) == said(expected)

    def test_a_stated_number_of_files_and_no_more(self, client: TestClient, digit: bytes) -> None:
        full = search_batch(client, [digit] * MAX_BATCH, limit=1)
        assert len(full.json()["items"]) == MAX_BATCH == 32
        response = search_batch(client, [digit] * (MAX_BATCH + 1))
        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == "/body/images"
        response = search_batch(client, [digit] * (MAX_FILES + 1))
        assert (response.status_code, response.json()["code"]) == (400, "invalid_form")
        assert response.json()["detail"] == (
            "The form has more than 64 files. Nothing was done. Send at most 32 images in a batch."
        )
        assert search_batch(client, []).status_code == 415  # a client has no form to send then

    def test_what_is_no_file_is_named_by_its_place(self, client: TestClient, digit: bytes) -> None:
        response = client.post(
            "/v1/galleries/digits/search/batch",
            files=[("images", ("a", digit)), ("images", (None, "cat.jpg"))],
        )
        assert response.status_code == 422
        [error] = response.json()["errors"]
        assert error["pointer"] == "/body/images/1"
        assert "file" in error["detail"]

    def test_bytes_are_bounded_for_all_together(self, start: StartClient, digit: bytes) -> None:
        client = start(max_image_bytes=5_000, max_batch_bytes=100_000)
        answers = search_batch(client, [digit, bytes(5_001), bytes(90_000)]).json()
        assert [item["status"] for item in answers["items"]] == [200, 413, 413]
        response = search_batch(client, [bytes(100_000), bytes(FORM_ALLOWANCE)])
        assert response.status_code == 413
        assert "a batch may have at most 100,000" in response.json()["detail"]


class TestAnEmbedding:
    def test_it_is_the_encoder_s(self, client: TestClient, bundle: Bundle, digit: bytes) -> None:
        for _ in ("miss", "hit"):
            answer = embed(client, digit).json()
            predictive = bundle.retriever.search(digit).predictive
            assert answer["direction"] == predictive.direction.tolist()
            assert answer["variance"] == predictive.variance.tolist()
            assert np.linalg.norm(answer["direction"]) == pytest.approx(1, abs=1e-6)
            assert answer["concentration"] == predictive.concentration
            assert answer["spherical_variance"] == predictive.spherical_variance
            assert answer["outlier_score"] == predictive.outlier_score
            assert answer["encoder"]["fingerprint"] == bundle.retriever.encoder.fingerprint
            assert answer["query"] == search(client, digit).json()["query"]

    def test_the_distribution_is_the_one_that_is_served(
        self, client: TestClient, digit: bytes
    ) -> None:
        """The spherical variance follows from what is given: 1 − 1 / √(1 + Σ v)."""
        answer = embed(client, digit).json()
        length = 1 / np.sqrt(1 + sum(answer["variance"]))
        assert answer["spherical_variance"] == pytest.approx(1 - length, abs=1e-6)

    def test_a_search_afterwards_need_not_encode(self, client: TestClient, digit: bytes) -> None:
        embed(client, digit)
        assert search(client, digit).json()["cache"] == "hit"

    def test_without_calibration_no_outlier_score(
        self, start: StartClient, bare_bundle: Bundle, digit: bytes
    ) -> None:
        answer = embed(start(bare_bundle), digit).json()
        assert answer["outlier_score"] is answer["query"]["ood"]["p_value"] is None
        assert answer["spherical_variance"] > 0
