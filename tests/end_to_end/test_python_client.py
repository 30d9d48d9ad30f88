"""The Python client, at a running service, and at one that misbehaves."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

import vouch_search
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import activate
from model_store.errors import InvalidRequest
from model_store.image_inputs import ImageInput
from service import schemas
from service.client import MAX_ATTEMPTS, MAX_WAIT_S, VouchClient, VouchProblem
from service.schemas import Neighbour, VectorFields
from service.schemas.keywords import CalibrationBounds
from tests.end_to_end.processes import Service
from tests.end_to_end.questions import truncated

Respond = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture(scope="module")
def vouch(
    digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[vouch_search.Client]:
    place = tmp_path_factory.mktemp("client")
    variables = {
        "VOUCH_FEEDBACK": str(place / "feedback.sqlite3"),
        "VOUCH_REVIEW_REASONS": '["random"]',
        "VOUCH_AUDIT_SHARE": "1",
    }
    with (
        Service(digits_bundle, place / "service.log", variables) as service,
        vouch_search.Client(str(service.http.base_url)) as client,
    ):
        yield client


@pytest.fixture
def photograph(digits_bundle: Path) -> Path:
    return digits_bundle / "samples" / "1.png"


class TestAtAService:
    def test_it_lists_and_describes_galleries(self, vouch: VouchClient, library: Bundle) -> None:
        [name] = vouch.galleries()
        assert (name.name, name.bundle_id) == ("digits", library.manifest.id)
        assert vouch.gallery("digits").n_items == name.n_items

    def test_it_finds_what_the_library_finds(
        self, vouch: VouchClient, library: Bundle, photograph: Path
    ) -> None:
        expected = library.retriever.search(photograph.read_bytes(), limit=4)
        answers = [vouch.search("digits", photograph, limit=4)]
        answers.append(vouch.search("digits", photograph.read_bytes(), limit=4))
        with photograph.open("rb") as file:
            answers.append(vouch.search("digits", file, limit=4))
        for answer in answers:
            assert answer.verdict == expected.decision.verdict
            assert [(r.id, r.match_probability) for r in answer.results] == [
                (match.id, match.match_probability) for match in expected.matches
            ]

    def test_gallery_of_a_service_answers_as_one_of_this_machine(
        self, vouch: vouch_search.Client, digits_bundle: Path, photograph: Path
    ) -> None:
        galleries: list[vouch_search.SearchableGallery]
        with vouch_search.open(digits_bundle) as local:
            galleries = [local, vouch.open("digits")]
            own = {"request_id", "timing_ms", "cache", "next_cursor", "audit"}
            answers = [one.search(photograph, k=4, filter={"label": "1"}) for one in galleries]
            for answer in answers:
                assert answer.query_name == str(photograph)
            dumped = [one.model_dump(exclude=own) for one in answers]
            for body in dumped:
                for found in body["results"]:
                    del found["thumbnail_url"]
            assert dumped[0] == dumped[1]
            tables = [one.search_many([photograph, b"no image"]).to_pandas() for one in galleries]
            assert tables[0].drop(columns="error").equals(tables[1].drop(columns="error"))
            for one in galleries:
                assert (one.name, len(one), len(one.labels)) == ("digits", 864, 8)
                assert one.bundle_id == digits_bundle.name
                assert one.thumbnail("missing") is None
                assert [item.id for item in one.items()] == [item.id for item in local.items()]
                shown = one.search(photograph, k=2)._repr_html_()
                assert shown.count('src="data:image/') == 2
                with pytest.raises(TypeError, match=r"k: .*valid integer"):
                    one.search(photograph, k="3")  # type: ignore[arg-type]

    def test_asynchronous_client_answers_as_the_other(
        self, vouch: vouch_search.Client, photograph: Path
    ) -> None:
        async def asked() -> tuple[vouch_search.Answer, vouch_search.Answers]:
            async with vouch_search.AsyncClient(str(vouch._http.base_url)) as client:
                assert [one.name for one in await client.galleries()] == ["digits"]
                with pytest.raises(VouchProblem, match="gallery_not_found"):
                    await client.open("other")
                gallery: vouch_search.AsyncSearchableGallery = await client.open("digits")
                answer = await gallery.search(photograph, k=4)
                return answer, await gallery.search_many([photograph, b"no image"], k=4)

        answer, answers = asyncio.run(asked())
        expected = vouch.open("digits").search(photograph, k=4)
        assert answer.results == expected.results
        assert answers.to_pandas()["id"][0] == expected.results[0].id
        assert "unsupported_image" in str(answers.failures[0])

    def test_vectors_and_neighbours_of_another_store(
        self, vouch: VouchClient, photograph: Path
    ) -> None:
        stored = vouch.embed("digits", photograph)
        query = VectorFields(
            mean=stored.direction,
            variance=stored.variance,
            outlier_score=stored.outlier_score,
            encoder_fingerprint=stored.encoder.fingerprint,
        )
        found = vouch.search_vector("digits", query, limit=100, filter={"label": {"ne": "0"}})
        assert found.results
        assert "0" not in {one.label for one in found.results}
        found = vouch.search_vector("digits", query, limit=100)
        page = vouch.search_next(found)
        assert page is not None
        neighbours = [
            Neighbour(id=one.id, label=one.label, similarity=one.similarity)
            for one in [*found.results, *page.results]
        ]
        decided = vouch.decide("digits", query, neighbours, alpha=0.2)
        assert decided.query.ood.alpha == 0.2
        assert decided.verdict == found.verdict
        assert decided.neighbours[0].match_probability == pytest.approx(
            found.results[0].match_probability, abs=1e-6
        )
        with pytest.raises(VouchProblem, match="invalid_vector"):
            vouch.decide("digits", query, neighbours[:3])

    def test_a_gallery_is_changed(self, digits_bundle: Path, tmp_path: Path) -> None:
        root = tmp_path / "bundles"
        shutil.copytree(digits_bundle, root / digits_bundle.name)
        activate(root, digits_bundle.name)
        photograph = digits_bundle / "samples" / "1.png"
        with (
            Service(root, tmp_path / "service.log") as service,
            VouchClient(str(service.http.base_url)) as vouch,
        ):
            put = vouch.put_item("digits", "a/b", photograph, label="x", metadata={"c": [1]})
            assert (put.existed, put.version) == (False, 1)
            assert vouch.item("digits", "a/b").metadata == {"c": [1]}
            assert vouch.search("digits", photograph).results[0].id == "a/b"
            key = "one of ours"
            batch: list[tuple[str, ImageInput]] = [("a/b", photograph), ("bad", b"no image")]
            written = vouch.put_items("digits", batch, idempotency_key=key)
            assert [one.status for one in written] == [200, 415]
            assert vouch.put_items("digits", batch, idempotency_key=key) == written
            assert vouch.edit_item("digits", "a/b", label=None).existed
            assert vouch.edit_item("digits", "a/b", metadata={"d": 2}).version == 4
            edited = vouch.item("digits", "a/b")
            assert (edited.label, edited.metadata) == (None, {"d": 2})
            assert vouch.delete_item("digits", "a/b").version == 5
            with pytest.raises(VouchProblem, match="item_not_found"):
                vouch.delete_item("digits", "a/b")
            assert vouch.compact("digits").bundle_id == vouch.gallery("digits").bundle.id

    def test_options_reach_the_service(self, vouch: VouchClient, photograph: Path) -> None:
        answer = vouch.search("digits", photograph, limit=1, alpha=0.99999, coverage=0.7)
        assert answer.query.ood.alpha == 0.99999
        assert answer.result_set is not None
        assert answer.result_set.coverage == 0.7
        refused = vouch.search("digits", photograph, alpha=0.99999, on_uncertain="refuse")
        assert (refused.verdict, refused.results) == ("out_of_distribution", [])

    def test_filters_and_groups_reach_the_service(
        self, vouch: VouchClient, photograph: Path
    ) -> None:
        where = {"label": {"in": ["1", "7"]}}
        answer = vouch.search("digits", photograph, filter=where, group_by="label")
        assert {result.label for result in answer.results} == {"1", "7"}
        similar = vouch.similar("digits", answer.results[0].id, filter=where, limit=3)
        assert {result.label for result in similar.results} <= {"1", "7"}
        with pytest.raises(VouchProblem, match="invalid_filter"):
            vouch.search_batch("digits", [photograph], filter={"label": []})

    def test_it_goes_on_page_by_page(self, vouch: VouchClient, photograph: Path) -> None:
        page: schemas.SearchAnswer | None = vouch.search("digits", photograph, limit=90)
        ranks = []
        while page is not None:
            ranks += [result.rank for result in page.results]
            page = vouch.search_next(page)
        assert ranks == list(range(1, 201))

    def test_of_a_batch_each_has_an_answer_or_a_problem(
        self, vouch: VouchClient, photograph: Path
    ) -> None:
        found, lost = vouch.search_batch("digits", [photograph, truncated()], limit=2)
        assert found.file_name == "1.png"
        assert found.answer is not None
        assert found.answer.results == vouch.search("digits", photograph, limit=2).results
        assert lost.problem is not None
        assert (lost.status, lost.problem.code) == (422, "corrupt_image")

    def test_it_assesses_and_embeds(self, vouch: VouchClient, photograph: Path) -> None:
        assessed = vouch.assess("digits", photograph, alpha=0.3)
        embedded = vouch.embed("digits", photograph, alpha=0.3)
        assert assessed.query == embedded.query
        assert assessed.query.ood.alpha == 0.3
        assert len(embedded.direction) == embedded.encoder.dim

    def test_it_walks_through_all_labels(self, vouch: VouchClient, library: Bundle) -> None:
        labels = list(vouch.labels("digits", page_size=3))
        assert labels == sorted(library.retriever.gallery.labels)
        [facet] = vouch.facets("digits")
        assert {value.value for value in facet.values} == set(labels)

    def test_it_walks_through_all_items(self, vouch: VouchClient, library: Bundle) -> None:
        ids = [item.id for item in vouch.items("digits", page_size=97)]
        assert ids == sorted(set(ids))
        assert len(ids) == library.retriever.gallery.n_items
        assert vouch.item("digits", ids[0]).id == ids[0]
        ones = [item.id for item in vouch.items("digits", page_size=10, filter={"label": "1"})]
        everything = library.retriever.gallery.items(np.arange(len(ids)))
        assert ones == sorted(item.id for item in everything if item.label == "1")
        assert ones
        assert ids[0] not in [r.id for r in vouch.similar("digits", ids[0], limit=5).results]

    def test_it_reports_on_texts_apart_from_images(self, vouch: VouchClient) -> None:
        report, default = vouch.calibration("digits", kind="image"), vouch.calibration("digits")
        # These count the queries of earlier tests, some of them seconds after the answer.
        served = {"drift", "absent", "feedback", "errors_over_time"}
        assert report.model_dump(exclude=served) == default.model_dump(exclude=served)
        assert default.status == "valid"
        assert vouch.calibration("digits", kind="text").status == "missing"
        assert vouch.operating_point("digits", 0.2) is not None
        assert vouch.operating_point("digits", 0.2, kind="text") is None

    def test_feedback_shows_in_the_calibration(self, vouch: VouchClient, photograph: Path) -> None:
        answer = vouch.search("digits", photograph)
        kept = vouch.feedback(answer, answer.results[0].id, correct=True)
        assert kept.match_probability == answer.results[0].match_probability
        summary = vouch.calibration("digits").feedback
        assert summary is not None
        assert (summary.n, summary.share) == (1, 1.0)
        point = vouch.operating_point("digits", 0.2)
        assert point is not None
        assert point.error <= 0.2

    def test_it_reviews_what_is_kept(self, vouch: VouchClient, photograph: Path) -> None:
        queue = vouch.review_queue("digits")
        for case in list(queue.cases()):
            queue.forget(case.query_id)
        answer = vouch.search("digits", photograph)
        [leased] = queue.lease("ann", seconds=60)
        assert leased.case.query_id == answer.query.id
        assert queue.image(answer.query.id).startswith(b"\x89PNG")
        assert queue.give_back(answer.query.id, "ann")
        assert queue.lease("bob", 2)[0].case == leased.case
        [part] = queue.export("label_studio")
        assert len(json.loads(part)) == 1
        vouch.decide_query("digits", answer.query.id, "none_of_these", reviewer="bob")
        assert [one.state for one in queue.cases(page_size=1)] == ["settled"]
        assert queue.summary().counts[0].n == 1
        assert queue.import_label_studio([]).n_new == 0

    def test_a_problem_is_an_exception_with_all_that_was_said(self, vouch: VouchClient) -> None:
        with pytest.raises(VouchProblem, match=r"422 corrupt_image: .*truncated") as caught:
            vouch.search("digits", truncated())
        assert (caught.value.status, caught.value.code) == (422, "corrupt_image")
        assert len(caught.value.request_id) == 32
        assert caught.value.retry_after is None
        with pytest.raises(VouchProblem) as caught:
            vouch.search("digits", truncated(), limit=0)
        assert [error.pointer for error in caught.value.errors] == ["/body/limit"]
        with pytest.raises(InvalidRequest, match="one part of a path"):
            vouch.gallery("../../livez")

    @pytest.mark.parametrize(
        ("ask", "field"),
        [
            (lambda vouch: vouch.manage.create("A/b"), "name"),
            (lambda vouch: vouch.manage.describe("digits", title="x" * 5000), "title"),
            (lambda vouch: vouch.manage.rename("digits", "A/b"), "name"),
            (lambda vouch: vouch.manage.calibrate("digits", max_eror=0.1), "max_eror"),
            (lambda vouch: vouch.manage.try_bundle("digits", "x", share=2), "share"),
            (lambda vouch: vouch.manage.adopt_absent_share("digits", 2), "share"),
            (lambda vouch: vouch.decide_query("digits", "0" * 64, "this-item", "i"), "decision"),
            (lambda vouch: vouch.review_queue("digits").lease(""), "reviewer"),
            (lambda vouch: vouch.unknown("digits").enrol("0" * 16, ""), "label"),
        ],
        ids=lambda one: one if isinstance(one, str) else "",
    )
    def test_wrong_argument_is_a_problem_of_the_service(
        self, vouch: VouchClient, ask: Callable[[VouchClient], object], field: str
    ) -> None:
        with pytest.raises(VouchProblem) as caught:
            ask(vouch)
        assert (caught.value.status, caught.value.code) == (422, "invalid_request")
        assert [error.pointer for error in caught.value.errors] == [f"/body/{field}"]

    @pytest.mark.parametrize(
        ("options", "field"), [({"page_size": 0}, "limit"), ({"state": ""}, "state")]
    )
    def test_wrong_choice_of_cases_is_a_problem_of_the_service(
        self, vouch: VouchClient, options: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(VouchProblem) as caught:
            next(vouch.review_queue("digits").cases(**options))
        assert [error.pointer for error in caught.value.errors] == [f"/query/{field}"]

    def test_wrong_feedback_is_a_problem_of_the_service(
        self, vouch: VouchClient, photograph: Path
    ) -> None:
        answer = vouch.search("digits", photograph)
        with pytest.raises(VouchProblem, match="invalid_request"):
            vouch.feedback(answer, "", correct=True)

    def test_bounds_of_a_calibration_are_those_of_the_service(self, vouch: VouchClient) -> None:
        """The comment fails the type check as soon as the type allows a misspelt bound."""
        assert CalibrationBounds.__annotations__.keys() == {*schemas.CalibrationWanted.model_fields}
        with pytest.raises(VouchProblem, match="did you mean `max_error`"):
            vouch.manage.calibrate("digits", max_eror=0.1)  # type: ignore[call-arg]

    def test_a_file_opened_as_text_is_refused_at_once(
        self, vouch: VouchClient, tmp_path: Path
    ) -> None:
        (tmp_path / "x").write_text("x", encoding="utf-8")
        with (tmp_path / "x").open(encoding="utf-8") as file, pytest.raises(TypeError, match="rb"):
            vouch.search("digits", file)  # type: ignore[arg-type] # on purpose


BUSY = {
    "type": "urn:vouch:problem:overloaded",
    "title": "Too much at once",
    "status": 503,
    "detail": "Ask again.",
    "instance": "/",
    "code": "overloaded",
    "request_id": "0",
}

ask_and_attempts = pytest.mark.parametrize(
    ("ask", "attempts"),
    [
        (lambda client: client.search("digits", b"a picture"), 2),
        (lambda client: client.galleries(), 2),
        (lambda client: client.delete_item("digits", "item"), 1),
    ],
    ids=["search", "read", "write"],
)


class TestAtAServiceThatMisbehaves:
    @pytest.fixture
    def waited(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        waited: list[float] = []
        monkeypatch.setattr(time, "sleep", waited.append)
        return waited

    @staticmethod
    def client(respond: Respond, **options: Any) -> VouchClient:
        return VouchClient("http://service", transport=httpx2.MockTransport(respond), **options)

    @staticmethod
    def in_turn(responses: Sequence[httpx2.Response], seen: list[bytes]) -> Respond:
        left = list(responses)

        def respond(request: httpx2.Request) -> httpx2.Response:
            seen.append(request.read())
            return left.pop(0)

        return respond

    def test_a_busy_one_is_asked_again_with_the_same_body(
        self, waited: list[float], vouch: VouchClient, photograph: Path
    ) -> None:
        answer = vouch.assess("digits", photograph)
        busy = [
            httpx2.Response(503, json=BUSY, headers={"Retry-After": after}) for after in ("1", "99")
        ]
        good = httpx2.Response(200, content=answer.model_dump_json())
        seen: list[bytes] = []
        client = self.client(self.in_turn([*busy, good], seen))
        with photograph.open("rb") as file:  # can be read but once
            assert client.assess("digits", file) == answer
        assert waited == [1.0, MAX_WAIT_S]
        assert len(seen) == MAX_ATTEMPTS
        assert len(set(seen)) == 1
        assert photograph.read_bytes() in seen[0]

    def test_not_for_ever(self, waited: list[float]) -> None:
        busy = [httpx2.Response(503, json=BUSY, headers={"Retry-After": "2"})] * 9
        seen: list[bytes] = []
        with pytest.raises(VouchProblem) as caught:
            self.client(self.in_turn(busy, seen)).galleries()
        assert (caught.value.code, caught.value.retry_after) == ("overloaded", 2.0)
        assert len(seen) == MAX_ATTEMPTS

    @pytest.mark.parametrize(
        ("status", "headers"),
        [
            (503, {}),
            (503, {"Retry-After": "soon"}),
            (503, {"Retry-After": "²".encode()}),
            (503, {"Retry-After": "٣".encode()}),
            (500, {"Retry-After": "1"}),
            (429, {"Retry-After": "1"}),
        ],
    )
    def test_nor_where_it_did_not_say_so(
        self, waited: list[float], status: int, headers: dict[str, Any]
    ) -> None:
        seen: list[bytes] = []
        answers = [httpx2.Response(status, json={**BUSY, "status": status}, headers=headers)]
        with pytest.raises(VouchProblem):
            self.client(self.in_turn(answers, seen)).galleries()
        assert (waited, len(seen)) == ([], 1)

    @pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
    def test_problem_passes_between_processes(self, copied: Callable[[Any], Any]) -> None:
        wrong = [{"pointer": "/body/limit", "detail": "is too small"}]
        answer = httpx2.Response(
            429, json={**BUSY, "status": 429, "errors": wrong}, headers={"Retry-After": "2"}
        )
        with pytest.raises(VouchProblem) as caught:
            self.client(lambda _: answer).galleries()
        caught.value.add_note("in the second folder")
        second = copied(caught.value)
        assert (type(second), str(second)) == (VouchProblem, str(caught.value))
        assert vars(second) == vars(caught.value)
        assert second.errors[0].pointer == "/body/limit"
        assert second.__notes__ == ["in the second folder"]

    @ask_and_attempts
    def test_after_the_end_of_a_replica_queries_are_sent_again_and_writes_are_not(
        self, waited: list[float], ask: Callable[[VouchClient], object], attempts: int
    ) -> None:
        lost = {**BUSY, "status": 502, "code": "replica_lost"}
        answers = [
            httpx2.Response(502, json=lost, headers={"Retry-After": "1"}),
            httpx2.Response(400, json={**BUSY, "status": 400, "code": "reached"}),
        ]
        seen: list[bytes] = []
        with pytest.raises(VouchProblem) as caught:
            ask(self.client(self.in_turn(answers, seen)))
        assert caught.value.code == ["replica_lost", "reached"][attempts - 1]
        assert (len(seen), len(set(seen)), waited) == (attempts, 1, [1.0] * (attempts - 1))

    @ask_and_attempts
    def test_after_a_lost_connection_queries_are_sent_again_and_writes_are_not(
        self, waited: list[float], ask: Callable[[VouchClient], object], attempts: int
    ) -> None:
        seen: list[bytes] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            seen.append(request.read())
            if len(seen) == 1:
                raise httpx2.RemoteProtocolError("Server disconnected", request=request)
            return httpx2.Response(400, json={**BUSY, "status": 400, "code": "reached"})

        with pytest.raises((VouchProblem, httpx2.RemoteProtocolError)) as caught:
            ask(self.client(answer))
        assert getattr(caught.value, "code", "lost") == ["lost", "reached"][attempts - 1]
        assert (len(seen), len(set(seen)), waited) == (attempts, 1, [1.0] * (attempts - 1))

    def test_queries_whose_connections_are_lost_end_after_three_attempts(
        self, waited: list[float]
    ) -> None:
        def answer(request: httpx2.Request) -> httpx2.Response:
            raise httpx2.ReadError("reset", request=request)

        with pytest.raises(httpx2.ReadError):
            self.client(answer).search("digits", b"a picture")
        assert waited == [1.0, 1.0]

    @pytest.mark.parametrize(
        "response",
        [
            httpx2.Response(502, text="<html>Bad gateway"),
            httpx2.Response(200, text="<html>Sign in"),
            httpx2.Response(200, json={"galleries": 3}),
        ],
        ids=["502", "200", "other JSON"],
    )
    def test_what_is_no_answer_of_it_is_a_problem_too(self, response: httpx2.Response) -> None:
        with pytest.raises(VouchProblem, match="answered by another program or release") as caught:
            self.client(lambda _: response).galleries()
        assert (caught.value.code, caught.value.status) == ("not_vouch", response.status_code)

    @pytest.mark.parametrize(
        "ask",
        [
            lambda client: client.review_queue("digits").summary(),
            lambda client: client.review_queue("digits").lease("ann"),
            lambda client: next(client.review_queue("digits").cases()),
            lambda client: client.unknown("digits").groups(),
            lambda client: client.unknown("digits").enrol("0f2c99a1b3d4e5f6", "leopard"),
            lambda client: client.manage.usage(),
        ],
    )
    def test_so_it_is_wherever_it_comes(self, ask: Callable[[VouchClient], object]) -> None:
        client = self.client(lambda _: httpx2.Response(200, text="<html>Sign in"))
        with pytest.raises(VouchProblem, match="answered by another program or release"):
            ask(client)

    @pytest.mark.parametrize(
        ("ask", "error"),
        [
            (lambda: VouchClient("http://127.0.0.1:1").galleries(), httpx2.ConnectError),
            (
                lambda: TestAtAServiceThatMisbehaves.client(undecodable).galleries(),
                httpx2.DecodingError,
            ),
        ],
    )
    def test_service_that_cannot_be_reached_is_the_error_of_the_documentation(
        self, ask: Callable[[], object], error: type[Exception]
    ) -> None:
        with pytest.raises(httpx2.RequestError) as caught:
            ask()
        assert type(caught.value) is error
        assert "`httpx2.RequestError`" in (sys.modules[VouchClient.__module__].__doc__ or "")

    def test_every_write_can_be_told_from_the_one_before(self) -> None:
        """So that it is carried out once, also where it is sent again."""
        seen: list[str] = []

        def respond(request: httpx2.Request) -> httpx2.Response:
            seen.append(request.headers["idempotency-key"])
            return httpx2.Response(500, json={**BUSY, "status": 500})

        client = self.client(respond)
        for write in (
            lambda: client.put_item("digits", "a", b"a picture"),
            lambda: client.put_items("digits", [("a", b"a picture")]),
            lambda: client.edit_item("digits", "a", label="b"),
            lambda: client.delete_item("digits", "a"),
        ):
            with pytest.raises(VouchProblem):
                write()
        assert len(set(seen)) == 4
        with pytest.raises(VouchProblem):
            client.delete_item("digits", "a", idempotency_key="mine")
        assert seen[-1] == "mine"

    def test_a_key_is_sent_as_bearer(self) -> None:
        seen: list[str | None] = []

        def respond(request: httpx2.Request) -> httpx2.Response:
            seen.append(request.headers.get("authorization"))
            return httpx2.Response(200, json={"galleries": []})

        self.client(respond, api_key="s3cret").galleries()
        self.client(respond).galleries()
        assert seen == ["Bearer s3cret", None]


def undecodable(request: httpx2.Request) -> httpx2.Response:
    headers = {"Content-Encoding": "gzip"}
    return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(b"no gzip"))


def test_it_needs_nothing_of_the_service() -> None:
    """The records of the service and an HTTP client are enough."""
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'redis', 'numpy', 'PIL'):\n"
        "    sys.modules[name] = None\n"
        "import service.client\n"
        "print(service.client.VouchClient('http://127.0.0.1:1') is not None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
