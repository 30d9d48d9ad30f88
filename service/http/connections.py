"""Connections that cost what they bring: what uvicorn itself has no bounds for.

The head of a request may have so many bytes and headers and take so long, an answer may lie unread
for so long, and only so many connections are held at a time. Where there are more, the one that has
waited longest for its next request makes room, of whoever holds the most: newcomers are never
locked out by connections that are merely held. `service.http.turns` begins requests in turn.

Granian 2.8 and Hypercorn 0.18 bound the size of a head, but by default leave a slow one open for
longer than 16 s; Granian answered 2,900 small requests a second on one connection where uvicorn
answered 9,400, and with these bounds 8,800.

Heads are read in turn as well: of a crowd that sends at once, one in each turn of the event loop.
Those whose turn has not come are not read on, so that what trickles into them is read together.
Bodies are read as they are asked for, piece by piece: until then they wait in the kernel.
"""

from __future__ import annotations

import asyncio
import json
import math
import resource
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.access.hosts import PROBES
from service.http import limits
from service.http.doors import Hesitation
from service.http.reading import BoundedReader
from service.http.turns import Turn, Turns

class _HeadTooLarge(Exception):
    """Raised within the parser, which then stops."""


class _AddressCutOff(Exception):
    """Raised within the parser, likewise."""


class _TooManyPieces(Exception):
    """Raised within the parser, as well."""


class Room:
    """The connections that are held, and those among them that wait for a request.

    Parameters
    ----------
    n_places : connections at a time; never more than three quarters of the files that this process
        may open.
    account_of : tells on whose account a request is; each account has its turns.
    hesitation : where other processes listen too.
    """

    def __init__(
        self,
        n_places: int,
        account_of: Callable[[Scope], str] | None = None,
        hesitation: Hesitation | None = None,
    ) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = files == resource.RLIM_INFINITY or n_places <= files * 3 // 4
        self._n_places = n_places if few else max(1, files * 3 // 4)
        self.account_of = account_of
        self._hesitation = hesitation
        self._n = 0
        self._waiting: defaultdict[str, dict[BoundedConnection, None]] = defaultdict(dict)
        self.readings = Turns()
        self.turns = Turns(shorter=self.readings)
        self.buffer = memoryview(bytearray(limits.PIECE_BYTES))

    def enter(self, connection: BoundedConnection) -> None:
        """Take a connection in, in place of another if need be."""
        self._n += 1
        if self._hesitation is not None:
            self._hesitation.newcomer(self._n)
        self.turns.newcomer()
        self.readings.newcomer()
        if self._n > self._n_places:
            held = max(self._waiting.values(), key=len, default={})
            leaving = next(iter(held), connection)  # all others are being answered
            self.work(leaving)
            leaving.give_up()
            if leaving is connection:
                return
        self.wait(connection)

    def leave(self, connection: BoundedConnection) -> None:
        """Let go of a connection that has ended."""
        self._n -= 1
        self.work(connection)

    def wait(self, connection: BoundedConnection) -> None:
        """Note that a connection waits for a request from now on."""
        self._waiting[connection.address][connection] = None

    def work(self, connection: BoundedConnection) -> None:
        """Note that a connection has a request."""
        held = self._waiting[connection.address]
        held.pop(connection, None)
        if not held:
            del self._waiting[connection.address]


class BoundedConnection(HttpToolsProtocol):
    """A connection within the bounds of `service.http.limits`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        room: Room,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self._room = room
        self._n_header_bytes = self._n_headers = 0
        self._n_pieces = self._n_body_bytes = 0
        self._unheard = 0  # bytes since the parser last understood something whole
        self._understood = self._in_head = self._uploading = self._at_work = False
        self._due = self._unread_due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._turn: Turn | None = None
        self._reading: Turn | None = None
        self._unparsed: list[bytes] = []
        self._is_lost = False
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._answering, self.app = self.app, self._in_turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take part; see `asyncio.Protocol`, as for all below."""
        super().connection_made(transport)
        transport.set_protocol(BoundedReader(self, self._room.buffer, self._n_read_next))
        self.address = self.client[0] if self.client else ""
        self._due = self.loop.time() + limits.HEAD_TIMEOUT_S
        self._timer = self.loop.call_at(self._due, self._look_at_the_clock)
        self._room.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of what was held."""
        if self._timer is not None:
            self._timer.cancel()
        self._room.leave(self)
        super().connection_lost(exc)
        self._is_lost = True
        self.app = self._answering  # holds on to nothing: no garbage for a collector to look for
        for cycle in self._unanswered:  # uvicorn tells the last one alone
            cycle.disconnected = True
            cycle.message_event.set()
        for turn in (self._turn, self._reading):
            if turn is not None and not turn.done():
                turn.set_result(None)

    async def _in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn, unless nobody waits for it any more."""
        self._turn = self._room.turns.ask(lambda: self._line(scope))
        await self._turn
        if not self._is_lost:
            self._at_work = True
            self._room.work(self)
            await self._answering(scope, receive, send)

    def _line(self, scope: Scope) -> str:
        """The line of a request: health has its own, beside that of whoever asks for much."""
        if scope["path"] in PROBES or self._room.account_of is None:
            return f"{'health' if scope['path'] in PROBES else 'others'} of {self.address}"
        return self._room.account_of(scope)

    def _n_read_next(self) -> int:
        """Return how many bytes may be read at a time: few, where they only wait.

        What is left of a body that was answered early is thrown away, and waits for nothing.
        """
        if self._at_work:
            return limits.PIECE_BYTES
        n_left = 0
        if self._uploading and self.cycle.response_complete:
            declared = (int(value) for name, value in self.headers if name == b"content-length")
            n_left = next(declared, 0) - self._n_body_bytes
        return min(max(n_left, limits.WAITING_BYTES), limits.PIECE_BYTES)

    def data_received(self, data: bytes) -> None:
        """Read on: a body at once, a head in its turn."""
        if self._uploading and not self._unparsed:
            self._parse(data)
            return
        if not self._unparsed:
            self._reading = self._room.readings.ask(lambda: self.address)
            if self._reading.done():
                self._parse(data)
                return
            self._reading.add_done_callback(self._parse_in_turn)
        self._unparsed.append(data)
        self.flow.pause_reading()

    def _parse_in_turn(self, _: Turn) -> None:
        """Take in what has come meanwhile, then read all of it, unless the client has gone."""
        if not self._is_lost:
            self.flow.resume_reading()
            self.loop.call_soon(self._parse_all)

    def _parse_all(self) -> None:
        data = b"".join(self._unparsed)
        self._unparsed.clear()
        if not self._is_lost:
            self.flow.resume_reading()
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse as uvicorn does, with no line in the log for strangers; end what leads nowhere."""
        self._unset_keepalive_if_required()
        self._understood = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        except httptools.HttpParserUpgrade:
            pass  # to what nobody speaks here: it is answered as a request
        if self._uploading and self.cycle.body and not self.cycle.response_complete:
            self.flow.pause_reading()  # until the body is asked for
        self._unheard = 0 if self._understood else self._unheard + len(data)
        if self._unheard > limits.MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, _TOO_LARGE)

    def shutdown(self) -> None:
        """Take no further request; what has been sent is read before."""
        if self._unparsed:
            self._parse_all()
        super().shutdown()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._n_header_bytes = self._n_headers = 0
        self._n_pieces = self._n_body_bytes = 0
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; one behind the body is heard by nobody."""
        self._n_headers += 1
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        if len(self.pipeline) >= limits.MAX_PIPELINED:
            raise _HeadTooLarge
        if is_cut_off(self.parser.get_method(), self.url):
            raise _AddressCutOff
        self._understood, self._in_head, self._uploading = True, False, True
        self._due = math.inf
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the body."""
        self._understood = True
        self._n_pieces += 1
        self._n_body_bytes += len(body)
        allowed = limits.MAX_PIECES + self._n_body_bytes // limits.BYTES_OF_A_PIECE
        if self._n_pieces > allowed:
            raise _TooManyPieces
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that all of a request is there."""
        self._understood, self._uploading = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of one that was answered early."""
        self._at_work = False
        self._unanswered.popleft().body = bytearray()  # what was not asked for
        super().on_response_complete()
        if self.cycle.response_complete:
            spare = 0.0 if self._uploading else limits.IDLE_TIMEOUT_S
            self._due = self.loop.time() + spare + limits.HEAD_TIMEOUT_S
            self._keep_watch()
            if not self.transport.is_closing():
                self._room.wait(self)

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        super().pause_writing()
        self._unread_due = self.loop.time() + limits.READ_TIMEOUT_S
        self._keep_watch()

    def resume_writing(self) -> None:
        """Note that it has read."""
        super().resume_writing()
        self._unread_due = math.inf

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's word for it
        """Refuse what is no HTTP, or too much of it."""
        too_large = self._n_header_bytes > limits.MAX_HEAD_BYTES
        if too_large or self._n_headers > limits.MAX_HEADERS:
            self._refuse(431, _TOO_LARGE)
        elif len(self.pipeline) >= limits.MAX_PIPELINED:
            self.give_up()
        else:
            self._refuse(400, "This is not HTTP/1.1, or not all of it.")

    def give_up(self) -> None:
        """End the connection at once, whatever is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

    def _count(self, n_bytes: int) -> None:
        self._n_header_bytes += n_bytes
        many = self._n_headers > limits.MAX_HEADERS
        if many or self._n_header_bytes > limits.MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def _refuse(self, status: int, why: str) -> None:
        """Say why, where no other answer is on its way, and end."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_refusal(status, why))
        self._due = self.loop.time() + limits.HEAD_TIMEOUT_S
        self._keep_watch()
        self.transport.close()

    def _keep_watch(self) -> None:
        """Be woken when the next thing is due; who is woken earlier goes on sleeping."""
        if self._timer is None:
            due = min(self._due, self._unread_due)
            self._timer = self.loop.call_at(due, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        due = min(self._due, self._unread_due)
        if due <= self.loop.time():
            self.give_up()
        elif due < math.inf:
            self._keep_watch()


def is_cut_off(method: bytes, address: bytes) -> bool:
    """Return whether an address ends before what its sender means.

    Of ``/items/a#b`` the parser leaves ``/items/a``, of ``/items/who?`` the part before the mark:
    a write to them would be to another item.
    """
    return b"#" in address or (method in {b"PUT", b"DELETE"} and address.endswith(b"?"))


_TOO_LARGE = (
    f"The head of the request has more than {limits.MAX_HEAD_BYTES:,} bytes or "
    f"{limits.MAX_HEADERS} headers. Send fewer, or shorter ones."
)
_TITLES = {400: "Bad Request", 431: "Request Header Fields Too Large"}


def _refusal(status: int, why: str) -> bytes:
    """A whole answer: nothing of the application is asked."""
    problem = {
        "type": "urn:vouch:problem:invalid-head",
        "title": "The head of the request is not as HTTP wants it",
        "status": status,
        "detail": why,
        "instance": "/",  # it was not read
        "code": "invalid_head",
        "request_id": uuid.uuid4().hex,
    }
    body = json.dumps(problem).encode()
    head = (
        f"HTTP/1.1 {status} {_TITLES[status]}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
