"""Parts of URLs, and URLs without secrets for display.

A URL may contain a password, or a query with a signature that gives access to the file. `shown`
removes password and query; ids, messages, reports and bundles contain only URLs from `shown`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from model_store.errors import DatasetError

BUCKETS = ("s3", "gs", "az")
WEB = ("http", "https")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_SIGNATURE = re.compile(
    r"(x-amz|x-goog|x-ms)-.*|awsaccesskeyid|googleaccessid|signature|expires|policy|key-pair-id"
    r"|.*token|s[eprtv]|sig|spr|sip|sk[a-z]*"
)
"""Names of query parameters in signed URLs of AWS, CloudFront, Google and Azure."""


def is_url(text: object) -> bool:
    """Return whether ``text`` is a URL and not a path."""
    return _URL.match(str(text)) is not None


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case.

    Raises
    ------
    DatasetError : the scheme is not supported.
    """
    found = _URL.match(url)
    scheme = found[1].lower() if found else ""
    if scheme not in (*BUCKETS, *WEB):
        wanted = ", ".join(f"{one}://" for one in (*BUCKETS, *WEB))
        raise DatasetError(f"{shown(url)} cannot be read; wanted a path, or one of {wanted}.")
    return scheme


def in_bucket(url: str) -> tuple[str, str]:
    """Return the URL of the bucket and the key; a key is not percent-encoded."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme.lower()}://{bucket}", key


def shown(url: str) -> str:
    """Return a URL without user, password, query and fragment; a path is returned unchanged."""
    found = _URL.match(url)
    if found is None or found[1].lower() in BUCKETS:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{found[1]}://…"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def without_secrets(text: str) -> str:
    """Return ``text``, a message of a library, with `shown` applied to each URL."""
    return _IN_TEXT.sub(lambda found: shown(found[0]), text)


def unsigned(url: str) -> str:
    """Return a URL without user, password and signature.

    Two URLs of the same file give the same result, even if their signatures differ.
    """
    query = "" if in_a_bucket(url) else urlsplit(url).query
    kept = [
        (name, value)
        for name, value in parse_qsl(query, keep_blank_values=True)
        if _SIGNATURE.fullmatch(name.lower()) is None
    ]
    return f"{shown(url)}?{urlencode(kept)}" if kept else shown(url)


def in_a_bucket(url: str) -> bool:
    """Return whether ``url`` is a bucket, or a file or folder in a bucket."""
    found = _URL.match(url)
    return found is not None and found[1].lower() in BUCKETS


def joined(folder: str, name: str) -> str:
    """Return the URL of the file ``name`` in ``folder``; ``name`` is not percent-encoded."""
    if in_a_bucket(folder):
        return f"{folder.rstrip('/')}/{name}"
    parts = urlsplit(folder)
    path = f"{parts.path.rstrip('/')}/{quote(name)}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def folder_of(url: str) -> str:
    """Return the URL of the folder that contains a file; keep the signature in the URL."""
    if in_a_bucket(url):
        return url.rpartition("/")[0]
    parts = urlsplit(url)
    return urlunsplit((*parts[:2], parts.path.rpartition("/")[0], parts.query, ""))


def file_name(url: str) -> str:
    """Return a file name for a URL: the last part of its path, its bucket, or its host."""
    path = url.partition("://")[2] if in_a_bucket(url) else unquote(urlsplit(url).path)
    name = PurePosixPath(path.replace("\0", "")).name
    name = "" if name == ".." else name
    return name.encode()[-100:].decode(errors="ignore") or urlsplit(url).hostname or "source"
