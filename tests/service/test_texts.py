"""Search in words over HTTP: uncalibrated, calibrated by captions, and what is no query."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

import vouch_search
from index_builder.indexing.bundle_evidence import calibrate_bundle_texts
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.errors import VouchError
from model_store.messages import MAX_TEXT_CHARACTERS
from model_store.queries import search_text
from service.app import create_app
from service.client import VouchClient, VouchProblem
from service.schemas.keywords import QueryOptions
from service.settings import Settings
from tests.end_to_end.questions import search
from tests.support.local_client import LocalClient
from tests.support.word_towers import LENGTH, captions_of_digits, with_word_tower, write_captions

KINDS = ("image", "text")
TEXT = "/v1/galleries/digits/search/text"

StartClient = Callable[..., TestClient]


@pytest.fixture(scope="module")
def root(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of digits: one with a text tower, and then one whose texts are calibrated too."""
    place = tmp_path_factory.mktemp("worded")
    with_word_tower(bundle, place / "bundles")
    lines = captions_of_digits(bundle, 300, seed=0)
    # Who works with so little is content with less.
    promises = {"max_error": 0.2}
    table = write_captions(place / "captions.jsonl", lines)
    calibrate_bundle_texts(place / "bundles", table, promises)
    return place / "bundles"


@pytest.fixture(scope="module")
def calibrated(root: Path) -> Bundle:
    return open_bundle(root, "cpu", threads=1)


@pytest.fixture(scope="module")
def worded(root: Path, calibrated: Bundle) -> Bundle:
    """The same with nothing calibrated for texts."""
    [before] = [path for path in root.glob("*/manifest.json") if path.parent.name != current(root)]
    return open_bundle(before.parent, "cpu", threads=1)


@pytest.fixture(scope="module")
def asked(worded: Bundle) -> Iterator[TestClient]:
    """A service whose texts are not calibrated."""
    yield from served(worded)


@pytest.fixture(scope="module")
def judged(calibrated: Bundle) -> Iterator[TestClient]:
    """A service whose texts are calibrated."""
    yield from served(calibrated)


def served(bundle: Bundle) -> Iterator[TestClient]:
    app = create_app(Settings(decoders=0), [bundle])
    with LocalClient(app, raise_server_exceptions=False) as client:
        yield client


def current(root: Path) -> str:
    return (root / "CURRENT").read_text().strip()


def ask(client: TestClient, text: str, **options: Any) -> httpx2.Response:
    return client.post(TEXT, json={"text": text, **options})


def answered(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def assert_problem(response: httpx2.Response, status: int, code: str, said: str) -> None:
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code), problem
    assert said in problem["detail"]


class TestNotCalibrated:
    def test_the_answer_is_that_of_an_image_without_probabilities(
        self, asked: TestClient, digit: bytes
    ) -> None:
        answer = answered(ask(asked, "a seven", limit=3))
        assert answer.keys() == search(asked, digit).json().keys()
        assert answer["verdict"] == "not_calibrated"
        assert "--captions" in answer["reason"]
        assert answer["bundle"]["calibration"]["status"] == "missing"
        assert [answer[name] for name in ("no_match_probability", "absent", "result_set")] == [
            None,
            None,
            None,
        ]
        query = answer["query"]
        assert query["image"] is None
        assert query["text"] == {"n_tokens": 2, "warnings": []}
        assert query["uncertainty"] == {
            "value": None,
            "percentile": None,
            "level": None,
            "epistemic": None,
            "aleatoric": None,
            "method": "deterministic",
        }
        assert query["ood"]["p_value"] is None
        for result in answer["results"]:
            assert result["label"] == "7"
            for name in ("match_probability", "rank_stability", "rank_confidence"):
                assert result[name] is None, name

    def test_images_are_judged_as_ever(
        self, asked: TestClient, client: TestClient, digit: bytes
    ) -> None:
        one, other = search(client, digit).json(), search(asked, digit).json()
        for name in ("verdict", "query", "results", "result_set", "absent"):
            assert one[name] == other[name], name

    def test_the_gallery_says_what_it_reads(self, asked: TestClient) -> None:
        text = asked.get("/v1/galleries/digits").json()["text"]
        assert text["context_length"] == LENGTH
        assert text["posterior"] == "deterministic"
        assert text["calibration"]["status"] == "missing"

    def test_there_is_nothing_that_feedback_could_refine(
        self, start: StartClient, worded: Bundle, tmp_path: Path
    ) -> None:
        client = start(worded, feedback=tmp_path / "f.sqlite3")
        answer = answered(ask(client, "a seven"))
        said = {"query_id": answer["query"]["id"], "item_id": answer["results"][0]["id"]}
        response = client.post("/v1/galleries/digits/feedback", json={**said, "correct": True})
        assert_problem(
            response, 409, "feedback_not_kept", "has no calibration for this kind of query"
        )


class TestCalibrated:
    def test_probabilities_and_verdicts_are_those_of_the_library(
        self, judged: TestClient, calibrated: Bundle
    ) -> None:
        verdicts = set()
        for text in ("a nice seven", "the digit two one", "the digit five seven"):
            answer = answered(ask(judged, text, limit=5))
            wanted = search_text(calibrated.retriever, text, 5)
            verdicts.add(answer["verdict"])
            assert answer["verdict"] == wanted.decision.verdict
            for one, other in zip(answer["results"], wanted.matches, strict=True):
                assert one["id"] == other.id
                assert one["match_probability"] == pytest.approx(other.match_probability)
        assert {"match", "ambiguous"} <= verdicts

    def test_options_are_heeded(self, judged: TestClient) -> None:
        options = {"filter": {"label": {"in": ["1", "2"]}}, "alpha": 0.5, "order": "probability"}
        answer = answered(ask(judged, "a seven", **options))
        assert {result["label"] for result in answer["results"]} <= {"1", "2"}
        assert answer["query"]["ood"]["alpha"] == 0.5
        refused = answered(ask(judged, "the digit five seven", on_uncertain="refuse"))
        assert (refused["verdict"], refused["results"]) == ("ambiguous", [])

    def test_it_is_remembered_for_the_next_page(self, judged: TestClient) -> None:
        first = answered(ask(judged, "the digit seven", limit=2))
        again = answered(ask(judged, "the digit seven", limit=2))
        assert (first["cache"], again["cache"]) == ("miss", "hit")
        for name in ("query", "results", "verdict", "bundle"):
            assert again[name] == first[name]
        page = judged.get(
            "/v1/galleries/digits/search/next", params={"cursor": first["next_cursor"]}
        ).json()
        assert [result["rank"] for result in page["results"]] == [3, 4]
        assert page["query"] == first["query"]
        assert page["bundle"] == first["bundle"]
        assert page["results"][0]["match_probability"] is not None

    def test_feedback_is_kept_apart_from_that_on_images(
        self, start: StartClient, calibrated: Bundle, digit: bytes, tmp_path: Path
    ) -> None:
        client = start(calibrated, feedback=tmp_path / "f.sqlite3")
        for answer in (answered(ask(client, "a seven")), search(client, digit).json()):
            said = {"query_id": answer["query"]["id"], "item_id": answer["results"][0]["id"]}
            path = "/v1/galleries/digits/feedback"
            assert client.post(path, json={**said, "correct": True}).status_code == 200
        reports = [calibration(client, kind=kind) for kind in ("text", "image")]
        assert [report["feedback"]["n"] for report in reports] == [1, 1]

    def test_each_kind_has_a_report(self, judged: TestClient) -> None:
        of_texts, of_images = calibration(judged, kind="text"), calibration(judged)
        assert of_texts["queries"] == "captions"
        assert of_images["queries"] == "held_out_images"
        assert of_texts["n_queries"] == 300 != of_images["n_queries"]
        assert of_texts["max_error"] == 0.2 != of_images["max_error"]
        text = judged.get("/v1/galleries/digits").json()["text"]
        assert text["calibration"] == {
            "status": "valid",
            "n_queries": 300,
            "reason": None,
            "reason_code": None,
        }
        points = [
            judged.get(
                "/v1/galleries/digits/calibration/operating-points",
                params={"max_error": 0.2, "kind": kind},
            ).json()["point"]
            for kind in ("text", "image")
        ]
        assert points[0] != points[1]

    def test_texts_do_not_move_what_is_watched_of_images(self, judged: TestClient) -> None:
        before = [calibration(judged, kind=kind)["absent"]["n_served"] for kind in KINDS]
        for n in range(10):
            answered(ask(judged, f"a seven {'nice ' * n}"))
        after = [calibration(judged, kind=kind)["absent"]["n_served"] for kind in KINDS]
        assert after[0] == before[0]
        assert after[1] > before[1]


def calibration(client: TestClient, **options: str) -> dict[str, Any]:
    return answered(client.get("/v1/galleries/digits/calibration", params=options))


class TestWhatIsNoQuery:
    @pytest.mark.parametrize(
        ("text", "code", "said"),
        [
            ("", "invalid_request", "/body/text"),
            ("  \n", "invalid_text", "is empty"),
            ("x" * (MAX_TEXT_CHARACTERS + 1), "invalid_request", "at most 2000 characters"),
            (7, "invalid_request", "/body/text"),
            (None, "invalid_request", "/body/text"),
        ],
    )
    def test_it_is_said(self, asked: TestClient, text: Any, code: str, said: str) -> None:
        assert_problem(asked.post(TEXT, json={"text": text}), 422, code, said)

    def test_half_a_character(self, asked: TestClient) -> None:
        body = b'{"text": "a \\ud800 b"}'
        headers = {"Content-Type": "application/json"}
        response = asked.post(TEXT, content=body, headers=headers)
        assert_problem(response, 422, "invalid_request", "/body/text")

    def test_a_document_far_too_long(self, asked: TestClient) -> None:
        response = asked.post(TEXT, json={"text": "a", "filter": {"x": "y" * 200_000}})
        assert_problem(response, 413, "image_too_large", "a document with a text")

    def test_a_gallery_without_a_tower(self, client: TestClient) -> None:
        assert_problem(ask(client, "a seven"), 422, "text_unavailable", "no text encoder")
        assert client.get("/v1/galleries/digits").json()["text"] is None

    def test_a_service_without_the_extra(
        self, start: StartClient, worded: Bundle, digit: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        client = start(open_bundle(worded.directory, "cpu", threads=1))
        assert_problem(ask(client, "a seven"), 422, "text_unavailable", "not installed")
        assert search(client, digit).status_code == 200

    def test_what_is_cut_off_is_said(self, asked: TestClient) -> None:
        text = answered(ask(asked, "seven " * 100))["query"]["text"]
        assert text["n_tokens"] == LENGTH
        assert "its end was ignored" in text["warnings"][0]


def test_the_client_searches_in_words(judged: TestClient, client: TestClient) -> None:
    with VouchClient("http://localhost", transport=judged._transport) as vouch:
        answer = vouch.search_text("digits", "a nice seven", limit=2, filter={"label": "7"})
        assert [result.label for result in answer.results] == ["7", "7"]
        assert answer.query.text is not None
        assert answer.query.uncertainty.value is None
    with (
        VouchClient("http://localhost", transport=client._transport) as vouch,
        pytest.raises(VouchProblem, match="text_unavailable"),
    ):
        vouch.search_text("digits", "a seven")


def test_gallery_in_a_folder_and_galleries_of_a_service_answer_alike(
    root: Path, judged: TestClient
) -> None:
    own = {"request_id", "timing_ms", "cache", "next_cursor", "audit"}
    options: QueryOptions = {"filter": {"label": {"in": ["7", "1"]}}, "order": "probability"}

    async def asked() -> vouch_search.Answer:
        transport = httpx2.ASGITransport(judged.app, client=("127.0.0.1", 50_000))
        async with vouch_search.AsyncClient("http://127.0.0.1", transport=transport) as client:
            gallery = await client.open("digits")
            return await gallery.search_text("a nice seven", k=4, **options)

    client = vouch_search.Client("http://127.0.0.1", transport=judged._transport)
    galleries: list[vouch_search.SearchableGallery]
    with vouch_search.open(root) as local, client:
        galleries = [local, client.open("digits")]
        answers = [one.search_text("a nice seven", k=4, **options) for one in galleries]
        answers.append(asyncio.run(asked()))
        dumped = [one.model_dump(exclude=own) for one in answers]
        for body, answer in zip(dumped, answers, strict=True):
            assert answer.query_name == "a nice seven"
            for found in body["results"]:
                del found["thumbnail_url"]
        assert dumped[0] == dumped[1] == dumped[2]
        assert dumped[0]["verdict"] == "match"
        for one in galleries:
            for wrong, said in ((7, "text: received int '7'"), (Path("a"), "wanted a text")):
                with pytest.raises(TypeError, match=said):
                    one.search_text(wrong)  # type: ignore[arg-type]
            with pytest.raises((VouchError, VouchProblem), match="is empty"):
                one.search_text(" ")
            with pytest.raises(ValueError, match="text: invalid character at position 2"):
                one.search_text("a \ud800")
            with pytest.raises((VouchError, VouchProblem), match="filter"):
                one.search_text("a seven", filter={"label": float("nan")})
            with pytest.raises(TypeError, match=r"k: .*valid integer"):
                one.search_text("a seven", k="3")  # type: ignore[arg-type]


def test_gallery_in_a_folder_without_a_tower_says_so(digits_bundle: Path) -> None:
    with (
        vouch_search.open(digits_bundle) as gallery,
        pytest.raises(VouchError, match="has no text encoder"),
    ):
        gallery.search_text("a seven")
