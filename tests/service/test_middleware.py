from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx2
import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from model_store.bundles.bundle import Bundle
from service.http.limits import FORM_ALLOWANCE
from service.http.middleware import RequestContext
from service.observability.metrics import Telemetry
from tests.end_to_end.questions import search, search_by_stream

StartClient = Callable[..., TestClient]

SHOP, STRANGER = "https://shop.example", "https://evil.example"


@pytest.fixture
def broken(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for an item fails in an unforeseen way."""

    def fail(item_id: str) -> None:
        raise RuntimeError(item_id)

    monkeypatch.setattr(bundle.retriever.gallery, "item", fail)


def post_plain_text(path: str) -> Callable[[TestClient], httpx2.Response]:
    kind = {"Content-Type": "text/plain"}
    return lambda client: client.post(f"/v1/galleries/digits/{path}", content=b"x", headers=kind)


# Answers of every kind: from a route, a file, a refusal before the routes, and a failure in one.
ANSWERS: dict[str, tuple[int, Callable[[TestClient], httpx2.Response]]] = {
    "answer": (200, lambda client: client.get("/v1/galleries")),
    "page": (200, lambda client: client.get("/")),
    "script": (200, lambda client: client.get("/page/page.js")),
    "redirect": (307, lambda client: client.get("/v1/galleries/", follow_redirects=False)),
    "no such path": (404, lambda client: client.get("/none")),
    "wrong method": (405, lambda client: client.delete("/livez")),
    "head": (200, lambda client: client.head("/v1/galleries")),
    "head of nothing": (404, lambda client: client.head("/v1/galleries/none")),
    "options": (405, lambda client: client.options("/v1/galleries")),
    "not a name": (400, lambda client: client.get("/v1/galleries/%ff%00%zz")),
    "a huge header": (404, lambda client: client.get("/none", headers={"X-Large": "x" * 60_000})),
    "no such cursor": (422, lambda client: client.get("/v1/galleries/digits/items?cursor=x")),
    "wrong option": (422, lambda client: client.get("/v1/galleries/digits/items?limit=x")),
    "half a form": (
        400,
        lambda client: client.post(
            "/v1/galleries/digits/search",
            content=b'--x\r\nContent-Disposition: form-data; name="image"',
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        ),
    ),
    "half a document": (
        422,
        lambda client: client.post(
            "/v1/galleries/digits/search/json",
            content=b'{"image_base64": "',
            headers={"Content-Type": "application/json"},
        ),
    ),
    **{
        f"{path} of a wrong type": (
            415,
            post_plain_text(path),
        )
        for path in (
            *("search", "search/raw", "search/json", "search/batch"),
            *("assess", "embed", "feedback"),
        )
    },
    "declared too large": (413, lambda client: search(client, bytes(200_000))),
    "streamed too large": (413, lambda client: search_by_stream(client, 200_000)),
    "failure": (500, lambda client: client.get("/v1/galleries/digits/items/any")),
}


@pytest.fixture(params=ANSWERS)
def answered(request: pytest.FixtureRequest, start: StartClient, broken: None) -> httpx2.Response:
    """An answer of each kind, asked for by a page of another origin."""
    status, ask = ANSWERS[request.param]
    client = start(max_image_bytes=1000, cors_origins=(SHOP,))
    client.headers["Origin"] = SHOP
    response = ask(client)
    assert response.status_code == status
    return response


def test_no_browser_may_guess_frame_or_run_anything(answered: httpx2.Response) -> None:
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert answered.headers["referrer-policy"] == "no-referrer"
    if answered.headers.get("content-type", "").startswith("text/javascript"):
        return  # no document: a browser ignores the rest
    policy = directives(answered)
    assert policy["default-src"] == policy["script-src"] == policy["style-src"] == ["'self'"]
    assert policy["img-src"] == ["'self'", "blob:", "data:"]
    for name in ("object-src", "base-uri", "form-action", "frame-ancestors"):
        assert policy[name] == ["'none'"], name
    assert "camera=()" in answered.headers["permissions-policy"]
    assert answered.headers["cross-origin-opener-policy"] == "same-origin"


def test_pictures_and_frames_of_other_origins_are_a_setting(start: StartClient) -> None:
    client = start(image_origins=("https://images.example",), frame_ancestors=(SHOP,))
    policy = directives(client.get("/"))
    assert policy["img-src"] == ["'self'", "blob:", "data:", "https://images.example"]
    assert policy["connect-src"] == ["'self'", "data:", "https://images.example"]
    assert policy["frame-ancestors"] == [SHOP]
    assert policy["script-src"] == ["'self'"]


def test_a_gallery_says_where_its_records_are(start: StartClient) -> None:
    client = start(record_urls={"digits": "https://a.example/{id}"}, image_origins=(SHOP,))
    gallery = client.get("/v1/galleries/digits").json()
    assert gallery["record_url"] == "https://a.example/{id}"
    assert gallery["image_origins"] == [SHOP]


def test_pages_elsewhere_may_show_pictures_where_some_may_call(start: StartClient) -> None:
    for settings, policy in (({}, "same-origin"), ({"cors_origins": (SHOP,)}, "cross-origin")):
        response = start(**settings).get("/v1/galleries/digits/samples/1")
        assert response.headers["cross-origin-resource-policy"] == policy


def test_only_the_documentation_may_run_inline_scripts(client: TestClient) -> None:
    policy = directives(client.get("/docs"))
    assert policy["script-src"] == ["'self'", "'unsafe-inline'"]
    assert policy["default-src"] == ["'self'"]
    for path in ("/docs/", "/docs/oauth2-redirect", "/openapi.json", "/static-offline-docs/x"):
        response = client.get(path, follow_redirects=False)
        assert directives(response)["script-src"] == ["'self'"], path


def test_every_refusal_is_a_problem_document(answered: httpx2.Response) -> None:
    if answered.status_code < 400:
        return
    assert answered.headers["content-type"] == "application/problem+json"
    if answered.request.method != "HEAD":
        problem = answered.json()
        assert problem["status"] == answered.status_code
        assert problem["request_id"] == answered.headers["x-request-id"]
        assert problem["type"] == f"urn:vouch:problem:{problem['code'].replace('_', '-')}"
    if answered.status_code == 405:
        assert answered.headers["allow"]


def test_head_of_each_path_is_its_get_without_the_body(client: TestClient) -> None:
    item = client.get("/v1/galleries/digits/items").json()["items"][0]
    paths = ["/", "/docs", "/openapi.json", "/page/page.js", "/livez", "/readyz", "/metrics"]
    paths += ["/v1/galleries", "/v1/galleries/digits", "/v1/galleries/none", item["thumbnail_url"]]
    for path in paths:
        got, head = client.get(path), client.head(path)
        assert head.content == b"", path
        assert head.status_code == got.status_code
        for name in ("content-type", "etag", "cache-control", "content-security-policy"):
            assert head.headers.get(name) == got.headers.get(name), path
    refused = client.head("/v1/galleries/digits/search")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_reads_come_compressed_but_pictures_and_searches_do_not(
    client: TestClient, digit: bytes
) -> None:
    for path in ("/v1/galleries/digits", "/openapi.json"):
        assert client.get(path).headers["content-encoding"] == "gzip", path
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert (plain.headers["vary"], plain.json()) == ("Accept-Encoding", client.get(path).json())
    item = client.get("/v1/galleries/digits/items").json()["items"][0]
    assert "content-encoding" not in client.get(item["thumbnail_url"]).headers
    assert "content-encoding" not in search(client, digit).headers


def test_every_answer_has_an_id(answered: httpx2.Response) -> None:
    assert len(answered.headers["x-request-id"]) == 32


def test_ids_are_of_one_request_and_not_the_clients(client: TestClient, digit: bytes) -> None:
    client.headers["X-Request-Id"] = "mine"
    answers = [search(client, digit) for _ in range(3)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids == [answer.json()["request_id"] for answer in answers]
    assert len(set(ids) | {"mine"}) == 4


class TestOtherOrigins:
    def test_one_that_may_call_can_read_every_answer(self, answered: httpx2.Response) -> None:
        assert answered.headers["access-control-allow-origin"] == SHOP
        exposed = answered.headers["access-control-expose-headers"]
        assert "X-Request-Id" in exposed.split(", ")

    def test_one_that_may_not_call_reads_nothing(self, start: StartClient) -> None:
        client = start(cors_origins=(SHOP,))
        response = client.get("/v1/galleries", headers={"Origin": STRANGER})
        assert "access-control-allow-origin" not in response.headers

    def test_by_default_there_is_none(self, client: TestClient) -> None:
        response = client.get("/v1/galleries", headers={"Origin": SHOP})
        assert not [name for name in response.headers if name.startswith("access-control")]

    @pytest.mark.parametrize(("origin", "status"), [(SHOP, 200), (STRANGER, 400)])
    def test_a_browser_asks_before_it_posts(
        self, start: StartClient, origin: str, status: int
    ) -> None:
        response = start(cors_origins=(SHOP,)).options(
            "/v1/galleries/digits/search",
            headers={
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "x-anything",
                "Access-Control-Request-Private-Network": "true",
            },
        )
        assert response.status_code == status
        assert (response.headers.get("access-control-allow-origin") == SHOP) is (status == 200)
        assert response.headers["access-control-allow-private-network"] == "true"

    def test_a_browser_may_send_whatever_any_path_takes(self, start: StartClient) -> None:
        client = start(cors_origins=(SHOP,))
        paths = client.get("/openapi.json").json()["paths"].values()
        methods = {method.upper() for path in paths for method in path}
        assert {"DELETE", "PATCH", "PUT"} <= methods
        for method in methods:
            headers = {"Origin": SHOP, "Access-Control-Request-Method": method}
            assert client.options("/v1/galleries", headers=headers).status_code == 200, method


class TestTheBoundOfABody:
    MAX = 5000

    @pytest.mark.parametrize("send", [search, search_by_stream])
    def test_an_image_at_its_bound_passes(
        self,
        start: StartClient,
        digit: bytes,
        send: Callable[[TestClient, bytes | int], httpx2.Response],
    ) -> None:
        client = start(max_image_bytes=self.MAX)
        image = digit + bytes(self.MAX - len(digit))
        response = send(client, image if send is search else self.MAX)
        # The stream is no image, which only a reader of all of it can know.
        assert response.status_code == (200 if send is search else 415)

    def test_what_is_declared_is_refused_before_it_is_read(self, start: StartClient) -> None:
        client = start(max_image_bytes=self.MAX)

        read = []

        def body() -> Iterator[bytes]:
            read.append("something")
            yield b"--edge"

        response = client.post(
            "/v1/galleries/digits/search",
            content=body(),
            headers={"Content-Length": str(self.MAX + FORM_ALLOWANCE + 1)},
        )
        assert response.status_code == 413
        assert read == []

    def test_a_nonsensical_declaration_is_not_believed(self, start: StartClient) -> None:
        client = start(max_image_bytes=self.MAX)
        response = client.post("/livez", content=b"", headers={"Content-Length": "-1"})
        assert response.status_code == 405


@pytest.mark.anyio
async def test_half_an_answer_is_cut_off_not_finished() -> None:
    """The server is told, or it would let a client take the half for the whole."""
    sent: list[Message] = []

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("the other half is lost")

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with pytest.raises(RuntimeError, match="the other half is lost"):
        await RequestContext(failing, Telemetry(), 1000, 1000)(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


def directives(response: httpx2.Response) -> dict[str, list[str]]:
    """Directive → sources of the content security policy."""
    policy = response.headers["content-security-policy"].split("; ")
    return {name: sources for name, *sources in (directive.split() for directive in policy)}
