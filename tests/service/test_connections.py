"""Clients that hold on to connections, at a real socket."""

from __future__ import annotations

import gc
import pickle
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service.__main__ import main
from service.http import limits
from service.http.server import BoundedConnection, open_listeners
from tests.support.certificates import write_certificate
from tests.support.waiting import TIMEOUT_S, wait_until

OK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Serve = Callable[..., int]


async def greet(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def read(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def large(request: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * 2**26)


async def refuse(request: Request) -> PlainTextResponse:
    return PlainTextResponse("no", 401)


async def headers(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse(" ".join(request.headers))


APP = Starlette(
    routes=[
        Route("/", greet),
        Route("/readyz", greet),
        Route("/read", read, methods=["POST"]),
        Route("/early", greet, methods=["POST"]),
        Route("/large", large),
        Route("/refused", refuse, methods=["POST"]),
        Route("/headers", headers, methods=["POST"]),
    ]
)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serve with short times; returns the port."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []
    for name in ("HEAD_TIMEOUT_S", "READ_TIMEOUT_S", "LINGER_S"):
        monkeypatch.setattr(limits, name, 1.0)

    def start(n_places: int = 100, **options: Any) -> int:
        [listener] = open_listeners("127.0.0.1", 0)
        config = uvicorn.Config(
            APP,
            http=partial(BoundedConnection, max_connections=n_places),  # type: ignore[arg-type] # no class, as in `vouch-serve`
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=1,
            **options,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        running.append((server, thread))
        wait_until(lambda: server.started)
        port: int = listener.getsockname()[1]
        return port

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the end, or a reset."""
    received = b""
    try:
        while more := connection.recv(2**16):
            received += more
    except ConnectionError:
        pass
    return received


def received(connection: socket.socket, ending: bytes) -> bool:
    """Whether an answer with that ending comes, in however many pieces."""
    said = b""
    while not said.endswith(ending):
        more = connection.recv(2**16)
        if not more:
            return False
        said += more
    return True


def ask(port: int, request: bytes = OK) -> bytes:
    with connect(port) as connection:
        connection.sendall(request.replace(b"Host", b"Connection: close\r\nHost", 1))
        return answer(connection)


def endless(port: int, start: bytes, piece: bytes) -> None:
    """Send ``piece`` again and again, until the connection ends."""
    until = time.monotonic() + 20
    with connect(port) as connection:
        connection.sendall(start)
        with suppress(ConnectionError):
            while time.monotonic() < until:
                connection.sendall(piece)
                time.sleep(0.001)
    assert time.monotonic() < until


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /#a", 400),
        (b"DELETE /?", 400),
        (b"PUT /a?", 400),
        (b"GET /?", 200),
        (b"GET /?a=?", 200),
        (b"GET /%23?", 404),
    ],
)
def test_address_that_the_parser_would_cut_off_is_refused(
    serve: Serve, line: bytes, status: int
) -> None:
    said = ask(serve(), line + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 %d " % status)


CHUNKED = b"POST /read HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
    "many headers": (b"GET / HTTP/1.1\r\n", b"a:b\r\n" * 100),
    "a value": (b"GET / HTTP/1.1\r\na: ", b"b" * 1000),
    "a name": (b"GET / HTTP/1.1\r\n", b"b" * 1000),
    "an address": (b"GET /", b"b" * 1000),
    "trailers": (CHUNKED + b"0\r\n", b"a: " + b"b" * 1000 + b"\r\n"),
    "a trailer": (CHUNKED + b"0\r\na: ", b"b" * 1000),
    "an extension": (CHUNKED + b"1;", b"b" * 1000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_given_up(serve: Serve, kind: str) -> None:
    port = serve()
    endless(port, *ENDLESS[kind])
    assert ask(port).endswith(b"hello")


@pytest.mark.parametrize("lines", [b"a: " + b"b" * 40_000 + b"\r\n", b"a:b\r\n" * 200])
def test_a_large_head_is_told_so(serve: Serve, lines: bytes) -> None:
    said = ask(serve(), b"GET / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in said
    assert b"invalid_head" in said


def test_what_is_no_http_is_told_so(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00 what")
        assert answer(connection).startswith(b"HTTP/1.1 400 ")


def test_a_large_body_in_small_chunks_is_no_large_head(serve: Serve) -> None:
    chunks = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    assert ask(serve(), CHUNKED + chunks * 30 + b"0\r\n\r\n").endswith(b"%d" % (30 * 0x4000))


def test_what_was_answered_unread_is_not_kept(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\nx")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        connection.sendall(b"x" * 29 + OK)
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        [held] = [one for one in gc.get_objects() if type(one) is BoundedConnection]
        assert not held.cycle.body


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\na: b\r\n", OK + OK[:5]])
def test_a_slow_head_ends_the_connection(serve: Serve, start: bytes) -> None:
    with connect(serve()) as connection:
        connection.sendall(start)
        began = time.monotonic()
        answer(connection)
        assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_trickle_does_not_lengthen_it(serve: Serve) -> None:
    with connect(serve()) as connection:
        began = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\n")
        try:
            while time.monotonic() - began < 10:
                connection.sendall(b"a:b\r\n")
                time.sleep(0.1)
        except ConnectionError:
            pass
        assert time.monotonic() - began < 5


@pytest.mark.slow
def test_a_body_that_nobody_waits_for_ends_too(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx")
        began = time.monotonic()
        assert answer(connection).endswith(b"hello")
        assert time.monotonic() - began < 5


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_given_up(serve: Serve) -> None:
    port = serve()
    with connect(port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(4)
        assert len(answer(connection)) < 2**26


@pytest.mark.slow
def test_a_slow_upload_is_not_the_connections_business(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n")
        for _ in range(30):
            time.sleep(0.08)
            connection.sendall(b"x")
        assert connection.recv(2**16).endswith(b"30")


@pytest.mark.slow
def test_a_connection_is_used_again(serve: Serve) -> None:
    with connect(serve()) as connection:
        for _ in range(6):
            connection.sendall(OK)
            assert connection.recv(2**16).endswith(b"hello")
            time.sleep(0.3)  # three times as long as a head may take, all in all


def test_client_that_sends_ahead_is_answered_in_order_to_a_bound(serve: Serve) -> None:
    port = serve()
    with connect(port) as connection:
        connection.sendall(OK * 4)
        assert answer(connection).count(b"hello") == 4
    with connect(port) as connection:
        connection.sendall(OK * 5_000)
        assert answer(connection).count(b"hello") < 100
    assert ask(port).endswith(b"hello")


@pytest.mark.parametrize("n_bytes", [1, 64])
def test_body_of_many_small_chunks_is_refused(serve: Serve, n_bytes: int) -> None:
    """Each costs the event loop the same, whatever it holds."""
    chunk = b"%x\r\n" % n_bytes + b"x" * n_bytes + b"\r\n"
    said = ask(serve(), CHUNKED + chunk * 20_000 + b"0\r\n\r\n")
    assert said.endswith(b"%d" % (20_000 * n_bytes)) == (n_bytes == 64)
    assert said.startswith(b"HTTP/1.1 400 ") == (n_bytes == 1)


def test_a_head_in_pieces_is_read_whole_in_a_crowd(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_TIMEOUT_S", TIMEOUT_S)  # a busy machine reads them late
    port = serve(300)
    crowd = [connect(port) for _ in range(50)]
    head = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for place in range(0, len(head), 7):
        for connection in crowd:
            connection.sendall(head[place : place + 7])
    for connection in crowd:
        with connection:
            assert answer(connection).endswith(b"hello")


def test_what_is_no_http_leaves_no_line_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    port = serve()
    with connect(port) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 400 ")
    upgrade = b"\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    with connect(port) as connection:
        connection.sendall(OK.replace(b"\r\n\r\n", upgrade))
        assert answer(connection).endswith(b"hello")
    assert caplog.records == []


def test_a_connection_leaves_no_garbage(serve: Serve) -> None:
    port = serve()
    assert ask(port).endswith(b"hello")
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            connect(port).close()
        assert ask(port).endswith(b"hello")
        assert gc.collect() < 50
    finally:
        gc.enable()


def test_held_connections_lock_nobody_out(serve: Serve) -> None:
    port = serve(10)
    held = [connect(port) for _ in range(60)]
    for connection in held[::2]:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        except ConnectionError:
            continue
    assert ask(port).endswith(b"hello")
    for connection in held:
        connection.close()


def refused(port: int, connect_to: Callable[[int], socket.socket], size: int) -> bytes:
    """What a client gets that sends all of a body before it reads, as a proxy may."""
    head = b"POST /refused HTTP/1.0\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with connect_to(port) as connection:
        connection.sendall(head % size)
        time.sleep(0.05)  # it has been refused by now
        for _ in range(size // 2**16):
            connection.sendall(b"x" * 2**16)
        return answer(connection)


def test_refusal_of_an_upload_reaches_a_client_that_sends_all_of_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_S", TIMEOUT_S)  # a busy machine sends it slowly
    port = serve()
    for _ in range(20):
        assert refused(port, connect, 2**24).startswith(b"HTTP/1.1 401 ")


def test_refusal_of_an_upload_reaches_a_client_over_tls(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_S", TIMEOUT_S)  # a busy machine sends it slowly
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    port = serve(ssl_certfile=cert, ssl_keyfile=key)
    said = refused(port, lambda at: context.wrap_socket(connect(at)), 2**22)
    assert said.startswith(b"HTTP/1.1 401 ")


def test_large_head_is_told_so_to_a_client_that_sends_all_of_it(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: " + b"b" * 2**21 + b"\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 431 ")


def test_broken_chunk_is_told_so(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(CHUNKED + b"4\r\nabcd\r\nnonsense\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 400 ")


def test_trailer_is_no_header(serve: Serve) -> None:
    trailer = b"4\r\nabcd\r\n0\r\nX-Late: 1\r\n\r\n"
    said = ask(serve(), CHUNKED.replace(b"/read", b"/headers") + trailer)
    assert b"x-late" not in said
    assert b"transfer-encoding" in said


@pytest.mark.slow
def test_slow_reader_gets_all_of_a_large_answer(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        n_bytes = 0
        for _ in range(60):  # longer than a client may read nothing
            n_bytes += len(connection.recv(2**20, socket.MSG_WAITALL))
            time.sleep(0.03)
        assert n_bytes + len(answer(connection)) > 2**26


def reaches(port: int, family: str) -> bool:
    """Return whether something listens on this machine's address of a family."""
    address = {"4": "127.0.0.1", "6": "::1"}[family]
    with suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False


FAMILIES = [("::", "46"), ("::0", "46"), ("0.0.0.0", "4"), ("127.0.0.1", "4"), ("::1", "6")]
"""Hosts, and the families that reach them."""


@pytest.mark.parametrize(("host", "families"), FAMILIES)
def test_listeners_of_a_host_take_its_families(host: str, families: str) -> None:
    listeners = open_listeners(host, 0)
    port = listeners[0].getsockname()[1]
    taken = "".join(family for family in "46" if reaches(port, family))
    for listener in listeners:
        listener.close()
    assert taken == families


def test_port_that_is_taken_is_refused() -> None:
    [listener] = open_listeners("127.0.0.1", 0)
    with listener, pytest.raises(OSError, match="in use"):
        open_listeners("127.0.0.1", listener.getsockname()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux divides connections")
@pytest.mark.parametrize(("host", "families"), FAMILIES)
def test_workers_bind_sockets_of_their_own(host: str, families: str) -> None:
    bound = open_listeners(host, 0, 2)
    port = bound[0].getsockname()[1]
    connects = partial(reaches, port)
    assert not any(map(connects, "46"))  # until a worker listens
    for n_workers in (1, 2):  # but another service cannot take the address
        with pytest.raises(OSError, match="in use"):
            open_listeners(host, port, n_workers)
    of_workers = [pickle.loads(ForkingPickler.dumps(one)) for _ in range(2) for one in bound]
    for one in of_workers:
        one.listen()
    assert [each for each in "46" if connects(each)] == list(families)
    for one in (*bound, *of_workers):
        one.close()


def test_it_speaks_tls(serve: Serve, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    port = serve(ssl_certfile=cert, ssl_keyfile=key)
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    with connect(port) as plain, context.wrap_socket(plain) as connection:
        connection.sendall(OK.replace(b"Host", b"Connection: close\r\nHost"))
        assert answer(connection).endswith(b"hello")


@pytest.mark.parametrize("host", ["a b", "a..b", "x" * 64 + ".example"])
def test_health_check_of_a_host_that_is_none_is_one_line(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--check-health", "--host", host])
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"vouch-serve: {host}, port 8080, does not answer: ")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_health_check_asks_over_tls_whatever_the_certificate_names(
    serve: Serve, tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    port = serve(ssl_certfile=cert, ssl_keyfile=key)
    monkeypatch.setenv("VOUCH_TLS_CERT", str(cert))
    main(["--check-health", "--host", host, "--port", str(port)])  # returns: status 0
    monkeypatch.delenv("VOUCH_TLS_CERT")
    with pytest.raises(SystemExit, match="1"):
        main(["--check-health", "--host", host, "--port", str(port)])
