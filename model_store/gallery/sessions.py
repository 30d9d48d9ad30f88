"""Sessions of PostgreSQL, which holds galleries, and logs of changes of other galleries."""

from __future__ import annotations

import time
from functools import cache
from importlib import import_module
from typing import Any

from model_store.errors import StorageBusy, StorageFull, WriteError, WriteRefused

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
