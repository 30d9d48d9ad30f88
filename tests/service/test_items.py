"""A gallery's items: listed, and searched with; and the pages of lists."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.signatures import SECRET_FILE, secret_of
from model_store.errors import InvalidCursor, OutdatedCursor
from model_store.search import N_CANDIDATES
from service.http import cursors
from service.schemas import SearchFields
from tests.end_to_end.questions import picture, search
from tests.support.bundle_copies import republished

StartClient = Callable[..., TestClient]

ITEMS = "/v1/galleries/digits/items"
NEXT = "/v1/galleries/digits/search/next"


def pages(client: TestClient, **parameters: Any) -> list[dict[str, Any]]:
    """All pages of the list of items."""
    found = [client.get(ITEMS, params=parameters).json()]
    while found[-1]["next_cursor"] is not None:
        cursor = {"cursor": found[-1]["next_cursor"]}
        found.append(client.get(ITEMS, params=parameters | cursor).json())
    return found


class TestTheList:
    @pytest.mark.parametrize("limit", [41, 100])
    def test_it_holds_every_item_once_by_id(
        self, client: TestClient, bundle: Bundle, limit: int
    ) -> None:
        gallery = bundle.retriever.gallery
        found = pages(client, limit=limit)
        assert [len(page["items"]) for page in found[:-1]] == [limit] * (len(found) - 1)
        ids = [item["id"] for page in found for item in page["items"]]
        assert ids == sorted(set(ids))
        assert len(ids) == gallery.n_items
        assert {page["n_items"] for page in found} == {gallery.n_items}
        assert {page["bundle_id"] for page in found} == {bundle.manifest.id}
        last = found[-1]["items"][-1]
        assert last == client.get(f"{ITEMS}/{last['id']}").json()

    def test_a_page_that_ends_the_list_has_no_next(
        self, start: StartClient, odd_bundle: Bundle
    ) -> None:
        n_items = odd_bundle.retriever.gallery.n_items
        client = start(odd_bundle)
        for limit, more in ((n_items - 1, True), (n_items, False), (n_items + 1, False)):
            page = client.get("/v1/galleries/odd/items", params={"limit": limit}).json()
            assert (page["next_cursor"] is not None) is more

    @pytest.mark.parametrize("limit", [2, 100])
    def test_only_items_that_pass_a_filter_are_listed(
        self, client: TestClient, bundle: Bundle, limit: int
    ) -> None:
        gallery = bundle.retriever.gallery
        items = gallery.items(np.arange(gallery.n_items))
        facets = client.get("/v1/galleries/digits/facets?limit=2").json()["facets"]
        assert [facet["field"] for facet in facets] == ["label"]
        for value in facets[0]["values"]:
            wanted = [item.id for item in items if item.label == value["value"]]
            where = json.dumps({"label": value["value"], "id": {"lt": "digit-2"}})
            narrow = [one for one in wanted if one < "digit-2"]
            found = pages(client, limit=limit, filter=where)
            assert [item["id"] for page in found for item in page["items"]] == narrow
            assert {page["n_passing"] for page in found} == {len(narrow)}
            assert value["n_items"] == len(wanted)
        refused = client.get(ITEMS, params={"filter": '{"label": {"near": 1}}'})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_filter")


class TestACursor:
    @pytest.fixture
    def of_items(self, client: TestClient) -> str:
        cursor: str = client.get(ITEMS, params={"limit": 5}).json()["next_cursor"]
        return cursor

    @pytest.fixture
    def of_search(self, client: TestClient, digit: bytes) -> str:
        cursor: str = search(client, digit).json()["next_cursor"]
        return cursor

    def test_it_is_of_one_list(self, client: TestClient, of_items: str, of_search: str) -> None:
        for path, cursor in ((NEXT, of_items), (ITEMS, of_search)):
            response = client.get(path, params={"cursor": cursor})
            assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")

    def test_it_is_of_one_filter(self, client: TestClient, of_items: str) -> None:
        where = '{"label": {"in": ["1", "7"]}}'
        of_filter = client.get(ITEMS, params={"limit": 5, "filter": where}).json()["next_cursor"]
        again = {"cursor": of_filter, "filter": '{"label":{"in":["1","7"]}}'}
        assert client.get(ITEMS, params=again).status_code == 200
        for wrong in ({}, {"filter": '{"label": "1"}'}):
            response = client.get(ITEMS, params={"cursor": of_filter, **wrong})
            assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")
        response = client.get(ITEMS, params={"cursor": of_items, "filter": where})
        assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")

    def test_it_is_of_one_gallery(
        self, start: StartClient, odd_bundle: Bundle, of_items: str, of_search: str
    ) -> None:
        other = start(odd_bundle)
        for path, cursor in (("items", of_items), ("search/next", of_search)):
            response = other.get(f"/v1/galleries/odd/{path}", params={"cursor": cursor})
            assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")

    def test_it_is_of_one_bundle(
        self, start: StartClient, digits_bundle: Path, tmp_path: Path, digit: bytes
    ) -> None:
        root = tmp_path / "bundles"
        first = republished(digits_bundle, root, description="first")
        client = start(open_bundle(root, "cpu", threads=1))
        of_items = client.get(ITEMS, params={"limit": 5}).json()["next_cursor"]
        of_search = search(client, digit).json()["next_cursor"]
        second = republished(digits_bundle, root, description="second")
        client.post(f"/v1/galleries/digits/bundles/{second}/activate").raise_for_status()
        for path, cursor in ((ITEMS, of_items), (NEXT, of_search)):
            response = client.get(path, params={"cursor": cursor})
            assert (response.status_code, response.json()["code"]) == (409, "outdated_cursor")
            assert first[:12] in response.json()["detail"]
            assert "first page" in response.json()["detail"]

    @pytest.mark.parametrize("writable", [True, False])
    def test_all_services_on_a_directory_take_it(
        self,
        start: StartClient,
        digits_bundle: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        writable: bool,
    ) -> None:
        root = tmp_path / "bundles"
        republished(digits_bundle, root, description="first")
        if not writable:
            monkeypatch.setattr("model_store.bundles.signatures._make", _read_only)
        one, other = (start(open_bundle(root, "cpu", threads=1)) for _ in range(2))
        cursor = one.get(ITEMS, params={"limit": 5}).json()["next_cursor"]
        assert other.get(ITEMS, params={"cursor": cursor}).status_code == 200
        assert (root / SECRET_FILE).exists() is writable
        assert not list(root.glob("*.partial"))
        if writable:
            assert (root / SECRET_FILE).stat().st_mode & 0o777 == 0o600

    def test_it_ages(
        self, client: TestClient, of_items: str, of_search: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time()
        for age, status in ((cursors.LIFE_S - 60, 200), (cursors.LIFE_S + 60, 409)):
            monkeypatch.setattr(time, "time", lambda age=age: now + age)
            for path, cursor in ((ITEMS, of_items), (NEXT, of_search)):
                assert client.get(path, params={"cursor": cursor}).status_code == status

    def test_no_character_of_it_may_be_another(self, client: TestClient, of_items: str) -> None:
        for place in range(len(of_items)):
            other = "A" if of_items[place] != "A" else "B"
            changed = of_items[:place] + other + of_items[place + 1 :]
            response = client.get(ITEMS, params={"cursor": changed})
            assert response.status_code == 422, place

    @pytest.mark.parametrize(
        "text", ["", "x", "=", "....", "Ünïcode", "\x00", "A" * 64, "A" * 2000]
    )
    def test_garbage_is_refused(self, client: TestClient, text: str) -> None:
        for path in (NEXT, ITEMS):
            response = client.get(path, params={"cursor": text})
            assert response.status_code == 422, response.text
            assert response.json()["code"] in {"invalid_cursor", "invalid_request"}

    def test_nobody_else_makes_one(self, client: TestClient, of_search: str) -> None:
        """With any other secret, or with the checksum that needed none."""
        data = base64.urlsafe_b64decode(of_search + "=" * (-len(of_search) % 4))
        fields = json.loads(data[16:]) | {"version": 1}
        for made in (forged(fields), forged(fields, secret=b""), unsigned(fields)):
            response = client.get(NEXT, params={"cursor": made})
            assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")

    def test_its_fields_are_checked_like_any_parameter(self) -> None:
        good = {
            "of": "search",
            "bundle": "b",
            "query_id": "0" * 64,
            "start": 3,
            "options": {"limit": 5},
        }
        assert cursors.read(forged(good), cursors.SearchCursor, "b", SECRET).start == 3
        for wrong in (
            {"start": N_CANDIDATES},
            {"start": 0},
            {"query_id": "../../etc"},
            {"options": {"limit": 101}},
            {"options": {"alpha": 2}},
            {"path": "/etc/passwd"},
        ):
            with pytest.raises(InvalidCursor):
                cursors.read(forged(good | wrong), cursors.SearchCursor, "b", SECRET)
        with pytest.raises(OutdatedCursor):
            cursors.read(forged(good), cursors.SearchCursor, "another", SECRET)
        far = forged({"of": "items", "bundle": "b", "after": 10**30})
        with pytest.raises(InvalidCursor):
            cursors.read(far, cursors.ItemsCursor, "b", SECRET)

    def test_a_row_past_the_end_is_an_empty_page(self, client: TestClient, bundle: Bundle) -> None:
        secret = secret_of(bundle.root, bundle.manifest)
        far = cursors.write(cursors.ItemsCursor(bundle=bundle.manifest.id, after=2**40), secret)
        page = client.get(ITEMS, params={"cursor": far}).json()
        assert (page["items"], page["next_cursor"]) == ([], None)


SECRET = b"a secret"


def forged(fields: dict[str, Any], secret: bytes = SECRET) -> str:
    """A cursor that says what one likes, signed with a secret."""
    data = json.dumps(fields).encode()
    signature = cursors._signature(data, secret)
    return base64.urlsafe_b64encode(signature + data).decode().rstrip("=")


def unsigned(fields: dict[str, Any]) -> str:
    """The same with a checksum that anybody can compute."""
    data = json.dumps(fields).encode()
    checksum = hashlib.blake2b(data, digest_size=12, person=b"vouch cursor").digest()
    return base64.urlsafe_b64encode(checksum + data).decode().rstrip("=")


def _read_only(path: Path) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


class TestFurtherResults:
    @pytest.mark.parametrize(
        ("limit", "options"), [(40, {}), (45, {"alpha": 0.3, "coverage": 0.7})]
    )
    def test_pages_are_one_list(
        self, client: TestClient, digit: bytes, limit: int, options: dict[str, Any]
    ) -> None:
        page = search(client, digit, limit=limit, **options).json()
        whole = search(client, digit, limit=2 * limit, **options).json()
        query, results = page["query"], list(page["results"])
        while page["next_cursor"] is not None:
            page = client.get(NEXT, params={"cursor": page["next_cursor"]}).json()
            assert page["query"] == query
            assert page["verdict"] == whole["verdict"]
            assert page["result_set"] == whole["result_set"]
            assert page["cache"] == "hit"
            results += page["results"]
        assert [result["rank"] for result in results] == list(range(1, N_CANDIDATES + 1))
        order = [(-result["similarity"], result["id"]) for result in results]
        assert order == sorted(order)
        # Stability and confidence depend on where the list ends; the rest on nothing but the query.
        for result, expected in zip(results, whole["results"], strict=False):
            for name in ("id", "similarity", "match_probability"):
                assert result[name] == expected[name], name
        assert results[limit : 2 * limit] == whole["results"][limit:]

    def test_what_was_refused_stays_refused(
        self, client: TestClient, bundle: Bundle, stranger: bytes
    ) -> None:
        refused = search(client, stranger, on_uncertain="refuse").json()
        assert (refused["results"], refused["next_cursor"]) == ([], None)
        answers = (
            search(client, (bundle.directory / s.file).read_bytes(), on_uncertain="refuse").json()
            for s in bundle.manifest.samples
        )
        sure = next(answer for answer in answers if answer["verdict"] == "match")
        secret = secret_of(bundle.root, bundle.manifest)
        cursor, served = sure["next_cursor"], sure["bundle"]["id"]
        fields = cursors.read(cursor, cursors.SearchCursor, served, secret)
        assert fields.options.on_uncertain == "refuse"

    def test_a_list_of_all_items_has_no_more(
        self, start: StartClient, odd_bundle: Bundle, digit: bytes
    ) -> None:
        client, n_items = start(odd_bundle), odd_bundle.retriever.gallery.n_items
        assert search(client, digit, "odd", limit=n_items).json()["next_cursor"] is None
        cursor = search(client, digit, "odd", limit=n_items - 1).json()["next_cursor"]
        last = client.get("/v1/galleries/odd/search/next", params={"cursor": cursor}).json()
        assert ([r["rank"] for r in last["results"]], last["next_cursor"]) == ([n_items], None)

    def test_a_query_that_is_forgotten_is_not_found(self, start: StartClient, digit: bytes) -> None:
        client = start(cache_bytes=0)
        cursor = search(client, digit).json()["next_cursor"]
        response = client.get(NEXT, params={"cursor": cursor})
        assert (response.status_code, response.json()["code"]) == (404, "query_not_found")

    def test_one_who_pages_is_counted_once(self, client: TestClient, digit: bytes) -> None:
        cursor = search(client, digit).json()["next_cursor"]
        client.get(NEXT, params={"cursor": cursor})
        counted = [
            line
            for line in client.get("/metrics").text.splitlines()
            if line.startswith("vouch_verdicts_total")
        ]
        assert sum(float(line.split()[-1]) for line in counted) == 1


class TestWhatIsLikeAnItem:
    def test_its_neighbours_are_those_of_its_direction(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        gallery = bundle.retriever.gallery
        directions = gallery.directions(np.arange(gallery.n_items)).astype(np.float64)
        for row in (0, 17, gallery.n_items - 1):
            (item,) = gallery.items(np.array([row]))
            answer = client.get(f"{ITEMS}/{item.id}/similar", params={"limit": 6}).json()
            assert answer["item"]["id"] == item.id
            similarities = directions @ directions[row]
            similarities[row] = -np.inf
            nearest = np.sort(similarities)[::-1][:6]
            assert [r["similarity"] for r in answer["results"]] == pytest.approx(nearest, abs=1e-6)
            assert item.id not in [result["id"] for result in answer["results"]]
            assert [result["rank"] for result in answer["results"]] == [1, 2, 3, 4, 5, 6]

    def test_no_probability_is_made_up(self, client: TestClient, bundle: Bundle) -> None:
        (item,) = bundle.retriever.gallery.items(np.array([3]))
        answer = client.get(f"{ITEMS}/{item.id}/similar").json()
        assert answer["verdict"] == "not_calibrated"
        assert answer["reason"]
        assert answer["bundle"]["calibration"]["status"] == "valid"
        assert {result["match_probability"] for result in answer["results"]} == {None}

    def test_its_uncertainty_is_that_of_the_nearest_other_item(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        """The thumbnails of this gallery are its very images."""
        gallery = bundle.retriever.gallery
        for row in (1, 200):
            (item,) = gallery.items(np.array([row]))
            as_item = client.get(f"{ITEMS}/{item.id}/similar").json()
            as_query = search(client, gallery.thumbnail(item.id).data).json()
            assert as_query["results"][0]["id"] == item.id
            first, nearest = as_item["results"][0], as_query["results"][1]
            assert first["similarity_std"] == pytest.approx(nearest["similarity_std"], rel=1e-3)
            assert 0 < as_item["uncertainty"]["value"] <= first["similarity_std"]
            assert as_item["uncertainty"]["method"] == as_query["query"]["uncertainty"]["method"]
            others = [r["id"] for r in as_query["results"][1:]]
            assert [r["id"] for r in as_item["results"][:-1]] == others

    def test_nothing_is_encoded(
        self, client: TestClient, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bundle.retriever.encoder, "encode", None)
        (item,) = bundle.retriever.gallery.items(np.array([5]))
        assert client.get(f"{ITEMS}/{item.id}/similar").status_code == 200
        assert search(client, picture("PNG")).status_code == 500

    def test_options_are_checked(self, client: TestClient, bundle: Bundle) -> None:
        (item,) = bundle.retriever.gallery.items(np.array([0]))
        path = f"{ITEMS}/{item.id}/similar"
        assert len(client.get(f"{path}?limit=2").json()["results"]) == 2
        for options in ("limit=0", "duplicate_similarity=2", "group_by=colour"):
            refused = client.get(f"{path}?{options}")
            assert refused.status_code == 422
            name = options.partition("=")[0]
            assert f"/query/{name}:" in refused.json()["detail"]


def test_every_id_leads_to_its_neighbours(start: StartClient, odd_bundle: Bundle) -> None:
    client = start(odd_bundle)
    items = client.get("/v1/galleries/odd/items").json()["items"]
    for item in items:
        path = item["thumbnail_url"].replace("/thumbnail", "/similar")
        answer = client.get(path).json()
        assert answer["item"] == item
        others = {result["id"] for result in answer["results"]}
        assert others == {other["id"] for other in items} - {item["id"]}


def test_numbers_that_json_has_no_word_for_are_null(
    start: StartClient, odd_bundle: Bundle, digit: bytes
) -> None:
    """An owner's metadata may hold them: SQLite keeps what Python's json wrote."""
    client = start(odd_bundle)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    paths = ["/items", "/items/plain", "/items/plain/similar", "/facets", ""]
    responses = [client.get(f"/v1/galleries/odd{path}") for path in paths]
    responses.append(search(client, digit, "odd"))
    for response in responses:
        assert response.status_code == 200, response.text
        json.loads(response.text, parse_constant=refuse)
    item = client.get("/v1/galleries/odd/items/plain").json()
    assert item["metadata"] == {"named": "plain", "weight": None, "deep": [None, {"far": None}]}


def test_options_of_a_cursor_are_those_of_a_search() -> None:
    cursor = cursors.SearchCursor(
        bundle="b", query_id="0" * 64, start=1, options=SearchFields(limit=7, alpha=0.25)
    )
    assert cursors.read(cursors.write(cursor, SECRET), cursors.SearchCursor, "b", SECRET) == cursor
    assert len(cursors.write(cursor, SECRET)) < cursors.MAX_LENGTH
