"""The files of the web page: scripts without comments, and HTML with the path prefix."""

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


_OWN_ADDRESS = re.compile(r'(href|src)="/')


class PageFiles(StaticFiles):
    """Serves the files of a folder, and removes comments from scripts.

    The lines of a script keep their numbers, so that error messages of the browser are correct.
    """

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Return a file, or 304 if the browser has the same file."""
        path = Path(full_path)
        if path.suffix != ".js":
            return super().file_response(path, stat_result, scope, status_code)
        script, tag = _shortened(path, stat_result.st_mtime_ns)
        response = Response(script, status_code, {"ETag": tag}, "text/javascript")
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


def page_response(document: Path, root_path: str, headers: Headers) -> Response:
    """Return the page for ``root_path``, or 304 if the browser has the same page."""
    page, tag = _within(document, document.stat().st_mtime_ns, root_path)
    response = Response(page, 200, {"ETag": tag}, "text/html")
    if _is_known(tag, headers):
        return NotModifiedResponse(response.headers)
    return response


def _is_known(tag: str, headers: Headers) -> bool:
    """Return whether the request names this ETag, so that the browser has the page."""
    known = headers.get("if-none-match", "")
    return tag in [one.strip().removeprefix("W/") for one in known.split(",")]


@lru_cache(maxsize=16)
def _within(document: Path, changed_ns: int, root_path: str) -> tuple[bytes, str]:  # noqa: ARG001 - of the cache
    """Return the page and its ETag. Links get the root path as a prefix."""
    text = document.read_text(encoding="utf-8")
    page = _OWN_ADDRESS.sub(lambda found: f'{found[1]}="{root_path}/', text).encode()
    return page, f'"{hashlib.blake2b(page, digest_size=16).hexdigest()}"'


@lru_cache(maxsize=128)
def _shortened(path: Path, changed_ns: int) -> tuple[bytes, str]:  # noqa: ARG001 - of the cache
    """Return a script without comments and indentation, and the script's ETag.

    Comments can be removed line by line, because no string in the page's scripts spans lines.
    """
    text = path.read_text(encoding="utf-8")
    script = _UNSEEN.sub(lambda found: "\n" * found[0].count("\n"), text).encode()
    return script, f'"{hashlib.blake2b(script, digest_size=16).hexdigest()}"'
