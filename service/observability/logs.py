"""Log lines as JSON objects, for a log collector."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from traceback import format_exception

from service.observability.records import current_record

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
        request = current_record()
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
