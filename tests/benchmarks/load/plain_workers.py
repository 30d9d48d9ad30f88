"""The service as a plain ASGI application: ``uvicorn --factory --workers 2 …plain_workers:app``.

Its settings come from the environment alone. Nothing of `service.workers` is used: no shared
counters, and a worker that dies is uvicorn's matter.
"""

from __future__ import annotations

from functools import partial

from starlette.types import ASGIApp

from service.access.access import open_access
from service.app import create_app
from service.encoding.process import EncoderProcess
from service.encoding.queues import SharedEncoders
from service.settings import Settings
from service.start import open_bundles, open_served


def app() -> ASGIApp:
    """Open what the settings name."""
    settings = Settings()
    open_one = partial(open_served, settings, SharedEncoders(EncoderProcess))
    return create_app(
        settings, open_bundles(settings.bundle, open_one), open_access(settings), open_one
    )
