"""The page's files: its scripts are served without the comments, which are for who reads them."""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Scope

_UNSEEN = re.compile(
    r"""
    ^[ ]*/\*.*?\*/[ ]*$  # a comment of whole lines
    | ^[ ]*//[^\n]*$
    | ^[ ]+              # indentation
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


class PageFiles(StaticFiles):
    """Files of a folder. Every line of a script keeps its number, for messages of the browser."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Answer with a file, or that the browser has it."""
        path = Path(full_path)
        if path.suffix != ".js":
            return super().file_response(path, stat_result, scope, status_code)
        script, tag = _shortened(path, stat_result.st_mtime_ns)
        response = Response(script, status_code, {"ETag": tag}, "text/javascript")
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


@lru_cache(maxsize=128)
def _shortened(path: Path, changed_ns: int) -> tuple[bytes, str]:  # noqa: ARG001 - of the cache
    """Return a script as a browser needs it, and its ETag; no text of it goes over a line."""
    text = path.read_text(encoding="utf-8")
    script = _UNSEEN.sub(lambda found: "\n" * found[0].count("\n"), text).encode()
    return script, f'"{hashlib.blake2b(script, digest_size=16).hexdigest()}"'
