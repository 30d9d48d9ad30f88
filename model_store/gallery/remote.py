"""The common parts of galleries in databases: availability, sessions, and a description.

Requests fail at once while a database is down. The sessions are those of PostgreSQL, which holds
galleries, and logs of changes of other galleries.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from model_store.errors import ConfigError, StorageBusy, StorageFull, WriteError, WriteRefused
from model_store.files import json_text
from model_store.installation import how_to_install

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two checks of a database that is down."""

SLOW_S = 1.0
"""Seconds after which a call without an answer is slow. While any call is slow, each new call first
checks the connection."""

CHECK_S = 2.0
"""Approximate maximum time for the answer to a check, in seconds."""


class Availability:
    """The availability of a database; thread-safe.

    While the database is down, calls fail without delay, and a thread checks the database.

    Parameters
    ----------
    name : name of the database for the log.
    ask : function that sends a small request to the database, and raises an error if the database
        does not answer within `CHECK_S`.
    is_reachable : function that returns whether the database's port accepts a connection; takes
        milliseconds.
    """

    def __init__(
        self, name: str, ask: Callable[[], object], is_reachable: Callable[[], bool]
    ) -> None:
        self._name, self._ask, self._is_reachable = name, ask, is_reachable
        self._lock, self._checking = threading.Lock(), threading.Lock()
        self._began: dict[int, float] = {}
        self._number = 0
        self._answered_at = time.monotonic()
        self._down = False
        self._closed = threading.Event()

    def begin(self) -> int | None:
        """Register a new call and return its number; None while the database is down."""
        now = time.monotonic()
        with self._lock:
            if self._down:
                return None
            is_slow = any(now - began > SLOW_S for began in self._began.values())
        if is_slow and not self._is_reachable():
            self.fail(UNREACHABLE)
            return None
        with self._lock:
            self._number += 1
            self._began[self._number] = now
            return self._number

    def end(self, number: int) -> None:
        """Record that a call has ended."""
        with self._lock:
            self._began.pop(number, None)

    def answered(self) -> None:
        """Record that the database has answered a call."""
        self._answered_at = time.monotonic()

    def check(self, reason: str | None = None) -> None:
        """Check the database after a call without an answer; calls fail if it is down.

        Only this call may have been slow, or all connections may be in use. So the database is not
        down if it has answered another call within `SLOW_S`, or if it answers the check.

        Parameters
        ----------
        reason : why the call failed, for the log; it is logged if the port takes no connection.
        """
        with self._checking:
            if not self._is_reachable():
                self.fail((reason or UNREACHABLE)[:_SHOWN])
            elif not self._down and time.monotonic() - self._answered_at > SLOW_S:
                try:
                    self._ask()
                except Exception as error:
                    self.fail(f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN])
                else:
                    self.answered()

    def fail(self, reason: str) -> None:
        """Record that the database did not answer; calls fail until it answers again."""
        with self._lock:
            if self._down or self._closed.is_set():
                return
            self._down = True
        logger.warning(
            "%s does not answer; requests are refused until it does",
            self._name,
            extra={"fields": {"reason": reason}},
        )
        threading.Thread(target=self._look, name="database-availability", daemon=True).start()

    def close(self) -> None:
        """Stop the checks."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_EVERY_S):
            if self._is_reachable():
                with suppress(Exception):
                    self._ask()
                    with self._lock:
                        self._down = False
                    logger.info("%s answers again", self._name)
                    return


UNREACHABLE = "its port takes no connection"

_SHOWN = 300
"""Maximum number of characters of an error in the log."""

_CONNECT_S = 0.045
"""Timeout in seconds for the check of the port, after a call was slow or failed."""


def takes_connections(address: tuple[str, int] | str) -> bool:
    """Return whether a port, or the Unix socket at a path, accepts a connection."""
    try:
        if isinstance(address, str):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_CONNECT_S)
                connection.connect(address)
        else:
            socket.create_connection(address, _CONNECT_S).close()
    except OSError:
        return False
    return True


def import_client(stored: str, client: str, extra: str, *modules: str) -> Any:  # noqa: ANN401
    """Import the ``modules`` of a database's client; return the first module.

    Raises
    ------
    ConfigError : the client is not installed.
    """
    try:
        imported, *_ = map(import_module, modules)
    except ImportError as error:
        raise ConfigError(
            f"{stored}, and {client} is not installed. {how_to_install(extra)}"
        ) from error
    return imported


BUSY_S = 5.0
"""Seconds for which a writer waits for other writers."""

STALLED_S = 60
"""Seconds after which PostgreSQL ends the transaction of a process that sends no statement."""


def session_options(timeout_s: float, **settings: object) -> dict[str, Any]:
    """Return the options of a connection, with further ``settings`` of the server.

    The limits end the statement of a server that does not answer, and the transaction of a process
    that is gone.
    """
    milliseconds = int(timeout_s * 1000)
    settings = {
        "statement_timeout": 2 * milliseconds,
        "idle_in_transaction_session_timeout": STALLED_S * 1000,
        "synchronous_commit": "on",
        **settings,
    }
    return {
        "connect_timeout": max(2, int(timeout_s)),
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": milliseconds,
        "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
    }


def write_error(error: BaseException | None, where: str) -> WriteError | None:
    """Return the error for a write that PostgreSQL has refused; None for errors of other kinds.

    Parameters
    ----------
    where : what was written to, for the message.
    """
    errors = import_module("psycopg").errors
    match error:
        case errors.LockNotAvailable():
            return StorageBusy(
                f"Another process has been writing to the gallery for {BUSY_S:g} s. Nothing was "
                "changed; send the request again."
            )
        case errors.DiskFull():
            return StorageFull(
                "There is no room on the disk of PostgreSQL to store the change. Nothing was "
                "changed. Free disk space, then send the request again."
            )
        case errors.ReadOnlySqlTransaction():
            return WriteRefused(
                f"PostgreSQL accepts no writes to {where}. It is a standby server, or "
                "default_transaction_read_only is on."
            )
        case errors.InsufficientPrivilege():
            return WriteRefused(
                f"The service has no permission to write to {where}. Give its database user write "
                "permission."
            )
    return None


@cache
def limited(timeout_s: float) -> Any:  # noqa: ANN401 - psycopg is imported late
    """Return a class of connections that waits for an answer for at most 2 ``timeout_s`` + 1 s.

    A server that works ends a statement before, by its own limit. A server that
    was stopped sends nothing, and its system still confirms what it receives.
    """
    psycopg = import_module("psycopg")

    class Limited(psycopg.Connection):  # type: ignore[misc, name-defined]
        def wait(self, steps: Any, *options: Any, **named: Any) -> Any:  # noqa: ANN401
            return super().wait(self._until(steps), *options, **named)

        def _until(self, steps: Any) -> Any:  # noqa: ANN401
            """Yield what ``steps`` yields; the client sends 0 every tenth of a second."""
            until = time.monotonic() + 2 * timeout_s + 1
            try:
                wanted = next(steps)
                while True:
                    ready = yield wanted
                    if not ready and time.monotonic() > until:
                        self.pgconn.finish()
                        raise psycopg.OperationalError("The server has sent no answer in time.")
                    wanted = steps.send(ready)
            except StopIteration as end:
                return end.value

    return Limited


@dataclass(frozen=True, kw_only=True)
class Description:
    """A bundle's description of its gallery in a database.

    Attributes
    ----------
    uri : address of the database that the gallery was written to, without user and password.
    encoder : fingerprint of the encoder.
    n_items, dim : values at the time of the build.
    index : ``type``, search ``parameters``, ``recall_at_10``, and ``n_queries``: the number of
        queries that measured the recall.
    """

    file: ClassVar[str]
    library: ClassVar[str]
    uri: str
    encoder: str
    n_items: int
    dim: int
    index: Mapping[str, Any]

    @property
    def engine(self) -> str:
        """The index and its search parameters, in the notation of the library."""
        parameters = [f"{name}={value}" for name, value in self.index["parameters"].items()]
        return ",".join([f"{self.library} {self.index['type']}", *parameters])

    def save(self, directory: Path) -> None:
        """Write to ``directory``."""
        (directory / self.file).write_text(json_text(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote."""
        return cls(**json.loads((directory / cls.file).read_text(encoding="utf-8")))
