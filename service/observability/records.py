"""The facts of a request, for its log line, metrics and trace."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

UNMATCHED = "unmatched"
"""Value of the route for paths that match no route."""

LONGEST_REASON = 1024
"""Maximum characters of a reason in a log line. Longer reasons, for example error messages of
libraries, are cut."""

_QUERY_ID = re.compile("[0-9a-f]{64}")

LONGEST_PATH = 256
"""Maximum characters of a path in a log line; clients send paths of any length."""


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """One search of a request.

    Attributes
    ----------
    verdict, cache, uncertainty_percentile, outlier_p_value, is_outlier : values in the answer.
    seconds : duration of each stage, and ``total``.
    ended_ns : time of the answer, in nanoseconds since 1970.
    """

    verdict: str
    cache: str
    uncertainty_percentile: float | None
    outlier_p_value: float | None
    is_outlier: bool
    seconds: Mapping[str, float]
    ended_ns: int


@dataclass(slots=True)
class RequestRecord:
    """A request and its outcome, without headers, body and query string.

    Attributes
    ----------
    trace_id : id of its trace, if tracing is on.
    route : pattern of its path.
    status : HTTP status; 499 if the client closed the connection.
    gallery : name of the gallery; None if the request named no served gallery.
    key_id, key_name : id and name of the API key; never its secret.
    code : code of its problem.
    reason : internal reason of a problem; the client does not see it. seconds : from start to
        end.
    """

    request_id: str
    method: str
    path: str
    started_ns: int = field(default_factory=time.time_ns)
    trace_id: str | None = None
    route: str = UNMATCHED
    status: int = 500
    gallery: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    code: str | None = None
    reason: str | None = None
    seconds: float = 0.0
    searches: list[SearchRecord] = field(default_factory=list)

    def ids(self) -> dict[str, str]:
        """Return the ids that every log line of the request contains."""
        ids = {"request_id": self.request_id}
        return ids if self.trace_id is None else ids | {"trace_id": self.trace_id}

    def fields(self) -> dict[str, Any]:
        """Return the fields of the request's log line; fields without a value are left out."""
        fields: dict[str, Any] = {
            **self.ids(),
            "method": self.method,
            # A query's id is a hash of its image; it would reveal which clients sent equal images.
            "path": _QUERY_ID.sub("{query_id}", self.path)[:LONGEST_PATH],
            "status": self.status,
            "ms": round(1000 * self.seconds, 2),
            "gallery": self.gallery,
            "key": self.key_id,
            "key_name": self.key_name,
            "code": self.code,
            "reason": self.reason and self.reason[:LONGEST_REASON],
        }
        if len(self.searches) == 1:
            fields |= {"verdict": self.searches[0].verdict, "cache": self.searches[0].cache}
        elif self.searches:
            fields["verdicts"] = dict(Counter(search.verdict for search in self.searches))
            fields["caches"] = dict(Counter(search.cache for search in self.searches))
        return {name: value for name, value in fields.items() if value is not None}


class Tracing(Protocol):
    """A destination of traces.

    No method waits for a collector, except `close`, which waits for a limited time.
    """

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Callable[[], None]:
        """Start the trace of a request, as a part of the caller's trace.

        Returns a function that ends this trace.
        """

    async def close(self) -> None:
        """Send the outstanding spans, within the timeout."""


_current: ContextVar[RequestRecord | None] = ContextVar("request", default=None)


def current_record() -> RequestRecord | None:
    """Return the current request; None outside a request."""
    return _current.get()


@contextmanager
def recorded(record: RequestRecord) -> Iterator[None]:
    """Make ``record`` the current request; tasks and threads started inside inherit it."""
    token = _current.set(record)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The facts of one batch, for metrics.

    Attributes
    ----------
    size : number of images in the batch.
    waited_s : waiting time of its first image, in seconds.
    stopped : True for the last batch in a call during which the encoder stopped.
    """

    size: int
    waited_s: float
    stopped: bool
