"""Clients that hold on to connections, at a real socket."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service.http import limits
from service.http.connections import BoundedConnection, Room
from service.http.doors import Hesitation
from service.http.server import serve as serve_doors
from service.settings import Settings
from tests.end_to_end.processes import free_port

OK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Serve = Callable[..., int]


async def greet(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def read(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def large(request: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * 2**26)


N_SLOW = [0]


async def slow(request: Request) -> PlainTextResponse:
    N_SLOW[0] += 1
    time.sleep(0.01)  # noqa: ASYNC251 - what the event loop computes
    return PlainTextResponse("hello")


async def late(request: Request) -> PlainTextResponse:
    """Say how many bytes were taken before the body was asked for, and how long it is."""
    await asyncio.sleep(0.3)
    n_before = sum(N_TAKEN)
    return PlainTextResponse(f"{n_before} of {len(await request.body())}")


N_TAKEN: list[int] = []

APP = Starlette(
    routes=[
        Route("/late", late, methods=["POST"]),
        Route("/", greet),
        Route("/livez", greet),
        Route("/slow", slow),
        Route("/read", read, methods=["POST"]),
        Route("/early", greet, methods=["POST"]),
        Route("/large", large),
    ]
)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serve with short times; returns the port."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []
    for name in ("HEAD_TIMEOUT_S", "READ_TIMEOUT_S", "IDLE_TIMEOUT_S"):
        monkeypatch.setattr(limits, name, 1.0)

    def start(n_places: int = 100, **options: Any) -> int:
        port = free_port()
        config = uvicorn.Config(
            APP,
            port=port,
            http=partial(BoundedConnection, room=Room(n_places)),  # type: ignore[arg-type] # no class, as in `vouch-serve`
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            **options,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
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


def endless(port: int, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send ``piece`` again and again; how many bytes were taken, and what was said."""
    sent = 0
    with connect(port) as connection:
        connection.sendall(start)
        try:
            while sent < 8 * 2**20:
                connection.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass
        return sent, answer(connection)


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
    sent, _ = endless(port, *ENDLESS[kind])
    assert sent < 6 * 2**20  # what the two systems' buffers take
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


@pytest.fixture
def _taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the bytes that connections are handed."""
    N_TAKEN.clear()
    take = BoundedConnection.data_received

    def counting(self: BoundedConnection, data: bytes) -> None:
        N_TAKEN.append(len(data))
        take(self, data)

    monkeypatch.setattr(BoundedConnection, "data_received", counting)


def test_a_connection_is_not_taken_at_once_where_others_listen(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    class Noted(Hesitation):
        def newcomer(self, n_held: int) -> None:
            held.append(n_held)

    monkeypatch.setattr(f"{__name__}.Room", partial(Room, hesitation=Noted()))
    port = serve()
    with connect(port), connect(port) as second:
        second.sendall(OK)
        assert received(second, b"hello")
    assert held == [1, 2]


@pytest.mark.parametrize(("processes", "hesitates"), [(1, False), ("auto", False), (2, True)])
def test_of_several_processes_each_hesitates(
    processes: int | Literal["auto"], hesitates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened(Exception):
        pass

    def opened(_n: int, _account_of: object, hesitation: Hesitation | None) -> Room:
        assert (hesitation is not None) == hesitates
        raise Opened

    monkeypatch.setattr("service.http.server.Room", opened)
    with pytest.raises(Opened):
        serve_doors(APP, Settings(processes=processes), [], lambda _: "", 1)


@pytest.mark.usefixtures("_taken")
def test_a_body_waits_in_the_kernel_until_it_is_asked_for(serve: Serve) -> None:
    n_bytes = 2**20
    request = b"POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % n_bytes
    said = ask(serve(), request + b"x" * n_bytes).rpartition(b"\r\n")[2].decode()
    n_before, n_in_all = map(int, said.split(" of "))
    assert n_in_all == n_bytes
    assert 0 < n_before <= limits.WAITING_BYTES + limits.PIECE_BYTES
    assert max(N_TAKEN) > limits.WAITING_BYTES


@pytest.mark.usefixtures("_taken")
def test_of_a_crowd_of_bodies_little_is_held(serve: Serve) -> None:
    """While one head of them is read in a turn, the others' bodies wait as well."""
    port, n, n_bytes = serve(300), 40, 2**18
    request = b"POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % n_bytes
    crowd = [connect(port) for _ in range(n)]
    for connection in crowd:
        connection.setblocking(False)
        connection.send(request + b"x" * n_bytes)
    time.sleep(0.2)  # before the first of them is asked for
    assert sum(N_TAKEN) <= n * (limits.WAITING_BYTES + limits.PIECE_BYTES)
    for connection in crowd:
        connection.close()


def test_what_was_answered_unread_is_not_kept(serve: Serve) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\nx")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        connection.sendall(b"x" * 29 + OK)
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        [held] = [one for one in gc.get_objects() if type(one) is BoundedConnection]
        assert not held.cycle.body


@pytest.mark.usefixtures("_taken")
def test_what_was_answered_unread_is_thrown_away_in_large_pieces(serve: Serve) -> None:
    """But nothing of the request behind it comes in them, which waits for its turn."""
    n_bytes = 2**20
    head = b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % n_bytes
    behind = b"POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % n_bytes
    with connect(serve()) as connection:
        connection.sendall(head)
        assert received(connection, b"hello")
        connection.sendall(b"x" * n_bytes + behind + b"x" * n_bytes)
        assert received(connection, b" of %d" % n_bytes)
    n_left, pieces = len(head) + n_bytes, []
    for n_taken in N_TAKEN:
        if n_left > 0:
            assert n_taken <= max(n_left, limits.WAITING_BYTES)
            pieces.append(n_taken)
        n_left -= n_taken
    assert max(pieces) > limits.WAITING_BYTES
    assert len(pieces) < n_bytes / limits.WAITING_BYTES / 2


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


@pytest.mark.slow
def test_who_sends_ahead_is_answered_in_order_to_a_bound(serve: Serve) -> None:
    port = serve()
    with connect(port) as connection:
        connection.sendall(OK * 4)
        assert answer(connection).count(b"hello") == 4
    with connect(port) as connection:
        connection.sendall(OK * 5_000)
        assert answer(connection).count(b"hello") < 100
    assert ask(port).endswith(b"hello")


@pytest.mark.parametrize("n_bytes", [1, 64])
def test_a_body_of_crumbs_is_given_up(serve: Serve, n_bytes: int) -> None:
    """Each costs the event loop the same, whatever it holds."""
    chunk = b"%x\r\n" % n_bytes + b"x" * n_bytes + b"\r\n"
    said = ask(serve(), CHUNKED + chunk * 20_000 + b"0\r\n\r\n")
    assert said.endswith(b"%d" % (20_000 * n_bytes)) == (n_bytes == 64)


@pytest.mark.slow
def test_a_crowd_delays_nobody_elses_health(serve: Serve) -> None:
    port = serve(300)
    crowd = [connect(port) for _ in range(100)]
    last = b"/slow HTTP/1.1\r\nConnection: close"
    for connection in crowd:
        connection.sendall(OK.replace(b"/ HTTP/1.1", last, 1))
    began = time.monotonic()
    assert ask(port, OK.replace(b"/", b"/livez", 1)).endswith(b"hello")
    waited = time.monotonic() - began
    for connection in crowd:
        with connection:
            assert answer(connection).endswith(b"hello")
    assert waited < (time.monotonic() - began) / 2


@pytest.mark.slow
def test_of_a_crowd_of_heads_few_are_read_in_a_turn(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read while somebody else waits is one head, whoever sends how many at once."""
    read_in_turns: list[int] = []
    turn_is_new = [True]
    parse = BoundedConnection._parse

    def counting(self: BoundedConnection, data: bytes) -> None:
        if turn_is_new[0]:
            read_in_turns.append(0)
            turn_is_new[0] = False
            self.loop.call_soon(turn_is_new.__setitem__, 0, True)
        read_in_turns[-1] += 1
        parse(self, data)

    monkeypatch.setattr(BoundedConnection, "_parse", counting)
    port = serve(300)
    crowd = [connect(port) for _ in range(100)]
    for connection in crowd:
        connection.sendall(OK.replace(b"/ HTTP", b"/slow HTTP", 1))
    for connection in crowd:
        with connection:
            assert received(connection, b"hello")
    assert sum(read_in_turns) == 100
    assert max(read_in_turns) <= 2


def test_a_head_in_pieces_is_read_whole_in_a_crowd(serve: Serve) -> None:
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


@pytest.mark.slow
def test_whoever_has_left_is_not_answered(serve: Serve) -> None:
    port, n_before = serve(300), N_SLOW[0]
    for _ in range(100):
        with connect(port) as connection:
            connection.sendall(OK.replace(b"/", b"/slow", 1) * 3)
    assert ask(port).endswith(b"hello")
    assert N_SLOW[0] - n_before < 200


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


def test_the_room_is_never_more_than_the_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 100))
    assert Room(1_000)._n_places == 75
    assert Room(50)._n_places == 50


def write_certificate(cert: Path, key: Path) -> None:
    """Write a private key, and a certificate that it signs itself."""
    private, name = Ed25519PrivateKey.generate(), x509.Name.from_rfc4514_string("CN=localhost")
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, algorithm=None)
    )
    cert.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_it_speaks_tls(serve: Serve, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    port = serve(ssl_certfile=cert, ssl_keyfile=key)
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    with connect(port) as plain, context.wrap_socket(plain) as connection:
        connection.sendall(OK.replace(b"Host", b"Connection: close\r\nHost"))
        assert answer(connection).endswith(b"hello")
