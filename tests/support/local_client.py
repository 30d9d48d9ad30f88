"""The application in this process, asked as a program on this machine asks."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient
from starlette.types import ASGIApp


class LocalClient(TestClient):
    """A `TestClient` that connects from, and to, 127.0.0.1."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        local = {"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 50_000)}
        super().__init__(app, **{**local, **options})
