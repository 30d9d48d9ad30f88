"""Lines for a log collector: one JSON object each."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

from service.observability.records import current_record

_KEY = re.compile(r"(vouch_[0-9a-f]{1,12}_)[0-9a-zA-Z]+")
"""A secret has no business in a log, whichever part of a request it was put into by mistake."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what is passed as ``extra={"fields": …}`` stands beside the text.

    A line that concerns a request carries its id, and its trace's where there is one.
    """

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
        return _KEY.sub(r"\1…", json.dumps(line, default=_described))


def log_as_json(level: int = logging.INFO) -> None:
    """Send every log line of the process, Python's warnings among them, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    # It warns of each malformed form: whoever sends them would write the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def _described(value: object) -> str:
    """Describe a value that JSON has no type for; binary data and arrays by their size only."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    shape = getattr(value, "shape", None)
    return str(value) if shape is None else f"array of shape {shape}"
