"""A service behind nginx and HAProxy: refusals arrive, a lost replica costs no search."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.message import Message
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx2
import pytest
from playwright.sync_api import Browser, Request, expect

from service.client import VouchClient, VouchProblem
from tests.end_to_end import fronts
from tests.end_to_end.fronts import BELOW_A_PATH, FRONTS, PROGRAMS, Front
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.load import BREAK_S
from tests.end_to_end.processes import TIMEOUT_S, Service, free_port, wait_until
from tests.end_to_end.questions import unseen

SEARCH = "/v1/galleries/digits/search"
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
N_TRIES = 10

pytestmark = pytest.mark.skipif(None in PROGRAMS.values(), reason="needs nginx and haproxy")


def haproxy_release() -> tuple[int, ...]:
    command = [str(PROGRAMS["haproxy"]), "-v"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", printed)
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    return KeysFile(tmp_path_factory.mktemp("behind") / "keys.json")


@pytest.fixture(scope="module")
def behind(digits_bundle: Path, keys: KeysFile) -> Iterator[Service]:
    """A service that trusts proxies on this machine."""
    settings = {
        "VOUCH_TRUSTED_PROXIES": "127.0.0.1",
        "VOUCH_KEYS": str(keys.path),
        "VOUCH_MAX_IN_FLIGHT": "1",
    }
    secret = keys.make("admin")
    with Service(digits_bundle, keys.path.with_name("log"), settings) as service:
        service.http.headers |= bearer(secret)
        yield service


@pytest.fixture
def limited(behind: Service, keys: KeysFile) -> dict[str, str]:
    """The header of a key that may send no more requests."""
    key = bearer(keys.make("read", rate_limit="1/day"))
    wait_until(lambda: behind.http.post(SEARCH, headers=key).status_code == 429, behind)
    return key


@pytest.fixture(params=FRONTS)
def front(behind: Service, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Front]:
    """A proxy in front of it, which has seen that it is ready."""
    with Front(request.param, [behind.port], tmp_path) as running:
        with httpx2.Client(base_url=running.url, timeout=TIMEOUT_S, trust_env=False) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, running)
        yield running


def upload(size: int) -> Iterator[bytes]:
    """A body in pieces, of which a client sends all before it reads the answer."""
    for _ in range(size // 2**18):
        yield os.urandom(2**18)


def test_refusals_of_uploads_reach_the_client(
    front: Front, behind: Service, limited: dict[str, str]
) -> None:
    """Of 413, 415, 404, 401 and 429, while the rest of an upload is still to come."""
    key = {"Authorization": behind.http.headers["Authorization"]}
    refused = {
        413: (SEARCH, {**key, **FORM}, 25 * 2**20),
        415: (SEARCH, {**key, "Content-Type": "text/plain"}, 5 * 2**20),
        404: ("/nothing", {**key, **FORM}, 5 * 2**20),
        401: (SEARCH, FORM, 5 * 2**20),
        429: (SEARCH, {**limited, **FORM}, 5 * 2**20),
    }
    found = Counter[tuple[int, int]]()
    for wanted, (path, headers, size) in refused.items():
        body = os.urandom(size)
        for _ in range(N_TRIES):
            answer = httpx2.post(
                front.url + path, content=body, headers=headers, timeout=TIMEOUT_S, trust_env=False
            )
            found[wanted, answer.status_code] += 1
    assert found == {(status, status): N_TRIES for status in refused}


def test_503_of_a_full_service_reaches_the_client(front: Front, behind: Service) -> None:
    key = {"Authorization": behind.http.headers["Authorization"]}
    with httpx2.Client(
        base_url=str(behind.http.base_url), timeout=TIMEOUT_S, trust_env=False, headers=key
    ) as other:
        leaves = threading.Event()

        def held() -> Iterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            while not leaves.wait(0.5):  # faster than the least rate
                yield b"x" * 10_000

        def hold() -> None:
            """Send again if the service was full with one of the requests that look for that."""
            while not leaves.is_set():
                other.post(SEARCH, content=held(), headers=FORM)

        holding = threading.Thread(target=hold)
        holding.start()
        try:
            body = os.urandom(5 * 2**20)
            wait_until(lambda: behind.http.post(SEARCH, headers=FORM).status_code == 503, behind)
            answers = [
                httpx2.post(
                    front.url + SEARCH,
                    content=body,
                    headers={**key, **FORM},
                    timeout=TIMEOUT_S,
                    trust_env=False,
                )
                for _ in range(N_TRIES)
            ]
        finally:
            leaves.set()
            holding.join()
    assert [(one.status_code, one.headers["Retry-After"]) for one in answers] == [
        (503, "1")
    ] * N_TRIES
    assert answers[0].json()["code"] == "overloaded"


def status_of(url: str, image: bytes) -> int:
    return httpx2.post(
        f"{url}{SEARCH}/raw", content=image, trust_env=False, timeout=TIMEOUT_S
    ).status_code


def status_by_client(url: str, image: bytes) -> int:
    """As `VouchClient` has it, which sends a search again."""
    with VouchClient(url, timeout_s=TIMEOUT_S) as client:
        try:
            client.search("digits", image)
        except VouchProblem as problem:
            return problem.status
    return 200


@pytest.mark.parametrize(
    ("kind", "n_more", "search"),
    [
        ("shipped nginx", 0, status_of),
        ("shipped HAProxy", 0, status_of),
        ("shipped nginx", 2**20, status_of),
        ("shipped HAProxy", 2**20, status_by_client),
    ],
    ids=["nginx", "HAProxy", "nginx, uploads of 1 MiB", "HAProxy, uploads of 1 MiB, our client"],
)
def test_killed_replica_costs_no_search_that_it_had_read(
    digits_bundle: Path,
    tmp_path: Path,
    kind: str,
    n_more: int,
    search: Callable[[str, bytes], int],
    belonging: list[bytes],
) -> None:
    """Requests that it had not read are answered by RST, which HAProxy 2.6 does not try again.

    HAProxy sends only a body of at most `tune.bufsize` again, nginx each one.
    """
    retries = search is status_by_client or kind == "shipped nginx" or haproxy_release() >= (3, 0)
    n_lost = 0 if retries else 2
    photograph = belonging[0] + bytes(n_more)
    settings = {"VOUCH_TRUSTED_PROXIES": "127.0.0.1", "VOUCH_ANONYMOUS": "true"}
    with ExitStack() as stack:
        services = [
            stack.enter_context(Service(digits_bundle, tmp_path / f"log{n}", settings))
            for n in range(2)
        ]
        front = stack.enter_context(Front(kind, [one.port for one in services], tmp_path))
        ends, statuses = threading.Event(), Counter[int | str]()

        def ask() -> None:
            while not ends.is_set():
                status: int | str
                try:
                    status = search(front.url, unseen(photograph))
                except httpx2.TransportError as error:
                    status = type(error).__name__
                statuses[status] += 1
                if status != 200:  # else the backlog of one that is dying gets this caller again
                    ends.wait(BREAK_S)

        with httpx2.Client(base_url=front.url, timeout=TIMEOUT_S, trust_env=False) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, front)
        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        wait_until(lambda: statuses[200] > 10, front)
        services[0].kill()
        n_before = statuses.total()
        wait_until(lambda: statuses.total() > n_before + 20, front)
        ends.set()
        for caller in callers:
            caller.join()
        assert statuses.total() - statuses[200] <= n_lost, (statuses, front.printed())


class Forgetful(BaseHTTPRequestHandler):
    """A stand-in for a replica that ends before it answers the first upload to each path."""

    protocol_version = "HTTP/1.1"
    received: ClassVar[list[tuple[str, Message]]] = []

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        is_first = self.path not in [path for path, _ in self.received]
        self.received.append((self.path, self.headers))
        if is_first:
            self.close_connection = True
        else:
            self._answer()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The tests read `received`."""


GALLERY = "/v1/galleries/digits"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *[("POST", f"{GALLERY}/{one}", 200) for one in ("search/raw", "assess", "decide")],
        ("POST", f"{GALLERY}/items", 502),
        ("PUT", f"{GALLERY}/items{GALLERY}/search", 502),
        ("DELETE", f"{GALLERY}/items/x", 502),
    ],
    ids=["search", "assess", "decide", "POST of items", "PUT", "DELETE"],
)
@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        ("shipped nginx", ""),
        (BELOW_A_PATH, "/vouch"),
        ("shipped HAProxy", ""),
        ("shipped HAProxy", "/vouch"),
    ],
    ids=["nginx", "nginx below a path", "HAProxy", "HAProxy behind a proxy with a path"],
)
def test_searches_alone_are_sent_to_another_replica(
    tmp_path: Path, kind: str, prefix: str, method: str, path: str, status: int
) -> None:
    """Each request has a front of its own: after two failures, a proxy tries no replica at all."""
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(ThreadingHTTPServer(("127.0.0.1", free_port()), Forgetful))
            for _ in range(2)
        ]
        for one in replicas:
            stack.callback(one.shutdown)
            threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}).start()
        front = stack.enter_context(Front(kind, [one.server_port for one in replicas], tmp_path))
        Forgetful.received.clear()
        answer = httpx2.request(
            method,
            front.url.removesuffix(prefix) + prefix + path,
            content=b"x",
            trust_env=False,
            timeout=TIMEOUT_S,
            verify=False,
        )
    assert answer.status_code == status
    assert len(Forgetful.received) == (2 if status == 200 else 1)
    if status != 200:
        assert answer.json()["code"] == "replica_lost"
    for received, headers in Forgetful.received:
        assert received == prefix + path
        assert headers["Connection"] != "close"
        if kind == BELOW_A_PATH:
            assert headers["X-Forwarded-Prefix"] == prefix


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped configurations, with timeouts of a second and one connection for an address."""
    for name in ("nginx.conf", "balancer.cfg"):
        text = (fronts.DOCKER / name).read_text("utf-8")
        for before, after in (
            ("timeout http-request 10s", "timeout http-request 1s"),
            ("proxy_read_timeout 60s", "proxy_read_timeout 1s"),
            ("limit_conn connections 100", "limit_conn connections 1"),
        ):
            text = text.replace(before, after)
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setattr(fronts, "DOCKER", tmp_path)


HEAD = f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "


@pytest.mark.parametrize(
    ("kind", "sent", "status", "code", "wait"),
    [
        ("shipped nginx", f"{HEAD}200000000\r\n\r\n", 413, "image_too_large", None),
        ("shipped nginx", f"{HEAD}1\r\n\r\n", 429, "rate_limited", "1"),
        ("shipped nginx", f"{HEAD}1\r\n\r\nx", 502, "replica_lost", "1"),
        ("shipped nginx", f"{HEAD}1\r\n\r\nx", 504, "deadline_exceeded", None),
        ("shipped HAProxy", f"{HEAD}9\r\n\r\nx", 408, "upload_too_slow", None),
        ("shipped HAProxy", f"{HEAD}1\r\n\r\nx", 503, "not_ready", "5"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_errors_of_a_proxy_are_problem_documents(
    tmp_path: Path, kind: str, sent: str, status: int, code: str, wait: str | None
) -> None:
    with ExitStack() as stack:
        port = free_port()  # nobody listens there
        if status == 504:
            silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = silent.getsockname()[1]
        front = stack.enter_context(Front(kind, [port], tmp_path))

        def send() -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", front.port), TIMEOUT_S)
            stack.enter_context(connection).sendall(sent.encode())
            return connection

        connections = [send() for _ in range(2 if status == 429 else 1)]
        readable, _, _ = select.select(connections, [], [], TIMEOUT_S)
        answer = HTTPResponse(readable[0])
        answer.begin()
        problem = json.load(answer)
        answer.close()
    assert answer.getheader("Content-Type") == "application/problem+json"
    assert answer.getheader("Retry-After") == wait
    assert answer.getheader("X-Request-Id") == problem["request_id"]
    assert len(problem["request_id"]) >= 32
    assert (answer.status, problem["status"], problem["code"]) == (status, status, code)
    assert problem["type"] == f"urn:vouch:problem:{code.replace('_', '-')}"
    assert {"title", "detail", "instance"} < set(problem)


SHOWS_PICTURES = "one => [...one.querySelectorAll('img')].filter(i => i.naturalWidth).length > 20"


def left(request: Request) -> bool:
    """Whether the browser ended a request itself, as it does with all of a page that it leaves."""
    return request.failure == "net::ERR_ABORTED"


@pytest.mark.browser
def test_page_and_docs_work_below_a_path_over_tls_and_http_2(
    browser: Browser, digits_bundle: Path, tmp_path: Path
) -> None:
    settings = {"VOUCH_TRUSTED_PROXIES": "127.0.0.1"}
    with (
        Service(digits_bundle, tmp_path / "log", settings) as service,
        Front(BELOW_A_PATH, [service.port], tmp_path) as front,
        browser.new_context(locale="en-GB", ignore_https_errors=True) as context,
    ):
        page, failed = context.new_page(), list[str]()
        page.on("requestfailed", lambda one: None if left(one) else failed.append(one.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("response", lambda one: failed.append(one.url) if one.status >= 400 else None)
        page.goto(f"{front.url}/")
        protocols = page.evaluate(
            "() => performance.getEntriesByType('navigation').map(one => one.nextHopProtocol)"
        )
        assert protocols == ["h2"]
        page.get_by_test_id("sample").first.click()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        picture = page.get_by_test_id("neighbour").first.locator("img").first
        page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())
        page.get_by_test_id("open-browse").click()
        expect(page.get_by_test_id("browse-status")).to_contain_text("items, by id")
        page.wait_for_function(SHOWS_PICTURES, arg=page.get_by_test_id("browse").element_handle())
        page.goto(f"{front.url}/docs/")  # is redirected
        assert page.url == f"{front.url}/docs"
        expect(page.locator(".opblock").first).to_be_visible()
        expect(page.locator(".servers option")).to_have_text(["/vouch"])
    assert failed == []
