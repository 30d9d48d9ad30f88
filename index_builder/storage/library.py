"""Options and errors of obstore, the library that reads buckets."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING

from index_builder.storage.urls import without_secrets

if TYPE_CHECKING:
    from obstore.store import ClientConfig

_ENDPOINTS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL"),
)

_SECRET = re.compile(r"(AWS|AZURE|GOOGLE)_.*(KEY|SECRET|TOKEN)")
"""Names of environment variables with secrets."""

_TEXT = re.compile(r'"([^"]*)"')
_SHORTEST = 4


def client_config(connect_s: float, longest: timedelta) -> ClientConfig:
    """Return connection settings.

    Plain HTTP is allowed only if an endpoint in the environment has an ``http://`` address.

    Parameters
    ----------
    connect_s : timeout for connecting in seconds.
    longest : timeout of a whole request, including the transfer of the content.
    """
    config: ClientConfig = {"connect_timeout": timedelta(seconds=connect_s), "timeout": longest}
    if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
        config["allow_http"] = True
    return config


def redacted(error: BaseException) -> str:
    """Return the error message of the library on one line, without secrets and raw XML."""
    text = without_secrets(str(error).split("\n", 1)[0])
    for name, value in os.environ.items():
        if _SECRET.fullmatch(name):  # a parser's error message may quote the secret or a part of it
            for secret in (value, *_TEXT.findall(value)):
                text = text.replace(secret, "…") if len(secret) >= _SHORTEST else text
    return text.partition(": <?xml")[0][:300] or type(error).__name__
