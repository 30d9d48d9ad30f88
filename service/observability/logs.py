"""The facts of a request for its log line, metrics and trace; log lines as JSON objects."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from traceback import format_exception
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


request_record: ContextVar[RequestRecord | None] = ContextVar("request", default=None)
"""The current request; None outside a request. Tasks and threads started inside inherit it."""


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


_KEY = re.compile(r"(vouch_[0-9a-f]{1,12}_)[0-9a-zA-Z]+")
"""Keys are removed from log lines, because a client may put a key into any part of a request."""


_SHORTEST_SECRET = 4
"""Minimum length of a secret to remove, in characters."""


class Redaction:
    """Removes secrets from texts.

    Parameters
    ----------
    secrets : texts to remove from all messages.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        texts = [one for one in secrets if len(one) >= _SHORTEST_SECRET]
        forms = {
            form for text in texts for form in (text, json.dumps(text)[1:-1], repr(text)[1:-1])
        }
        longest_first = sorted(forms, key=len, reverse=True)
        self._secret = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        """Return ``text`` without secrets and without the secret part of keys."""
        text = _KEY.sub(r"\1…", text)
        return text if self._secret is None else self._secret.sub("…", text)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in a line, with the fields of ``extra={"fields": …}``.

    A line about a request has the id of the request; if the request has a trace, also the id of the
    trace.

    Parameters
    ----------
    redact : function that removes secrets from a line.
    """

    def __init__(self, redact: Redaction | None = None) -> None:
        super().__init__()
        self._redact = redact or Redaction()

    def format(self, record: logging.LogRecord) -> str:
        """Format ``record``."""
        request = request_record.get()
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({} if request is None else request.ids()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._redact(_encoded(line))


def log_as_json(level: int = logging.INFO, secrets: Iterable[str] = ()) -> None:
    """Send all log lines of the process, and Python's warnings, to standard error.

    Parameters
    ----------
    secrets : texts to remove from all lines, and from the traceback of a fatal error.
    """
    redact = Redaction(secrets)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(redact))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # No line contains these facts, and their collection takes half of the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    sys.excepthook = lambda *error: sys.stderr.write(redact("".join(format_exception(*error))))
    # python_multipart logs each malformed form, so a client could fill the log with warnings.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def _described(value: object) -> str:
    """Describe a value that has no JSON type; for binary data and arrays, state only the size."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    shape = getattr(value, "shape", None)
    return str(value) if shape is None else f"array of shape {shape}"


_encoded = json.JSONEncoder(default=_described).encode
"""Encodes a line; `json.dumps` with ``default`` would make a new encoder for each line."""
