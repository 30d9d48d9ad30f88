"""``vouch-serve``: serve one or more bundles over HTTP, by one process or several workers."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import locate
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.signatures import read_private_key, read_public_key
from model_store.errors import BundleMismatch, VouchError, WriteError, with_reason
from model_store.feedback import FeedbackLog
from model_store.machine import freeze_garbage, raise_gc_threshold, tune_malloc
from service.access.access import Access, open_access
from service.app import create_app
from service.command_line import refuse, say
from service.encoding.process import EncoderProcess
from service.encoding.queues import OpenFound, SharedEncoders
from service.http.middleware import Drain
from service.http.server import STARTUP_FAILURE, open_listeners, serve
from service.observability.logs import Redaction, log_as_json
from service.settings import DEFAULT_GALLERIES, Settings
from service.workers import (
    is_first_worker,
    join_workers,
    n_workers,
    raise_file_limit,
    shared_directory,
)

logger = logging.getLogger("service")

GRACE_S = 20
"""Seconds that requests in progress get after a SIGTERM; less than the 30 s of Docker Compose."""


IN_USE_S = 10.0
"""If the address is in use at the start, the service retries for this number of seconds. After a
crash, old worker processes may hold the address for a moment. Without retries, a service manager
might give up after a few failed starts."""

SWITCH_INTERVAL_S = 0.0005
"""Switch interval of Python threads in seconds: the maximum time for which a computing thread
delays the event loop. With Python's default of 0.005, each step of a request could be delayed by 5
ms."""


def start(settings: Settings) -> None:
    """Serve with this process or several workers, until a signal.

    Raises
    ------
    SystemExit : status 1 or 2 with one line on standard error, if the service cannot start.
    """
    log_as_json(secrets=settings.secrets)
    tune_malloc()
    _require_certificate(settings)
    if settings.processes > 1 and settings.redis_url is None:
        refuse(
            f"--processes {settings.processes} needs --redis-url: the workers share encodings and "
            "request counts in Redis. Set --redis-url, or use one process.",
            2,
        )
    _require_feedback(settings)
    settings = _with_galleries(settings)
    raise_file_limit()
    try:
        access = open_access(settings)
        _require_galleries(settings)  # errors are found before models are loaded
        if settings.signing_key is not None:
            read_private_key(settings.signing_key)
        if settings.processes > 1:
            for path in settings.bundle:
                locate(path)
            open_app: Callable[[], ASGIApp] = partial(_open_in_worker, settings)
        else:
            drain = Drain(settings.drain_s)
            open_app = partial(_begun, _open_app(settings, access, drain), drain, settings)
    except (VouchError, OSError) as error:
        refuse(_message(error, settings))
    listeners = _listeners(settings)
    fields = {"url": _url(settings, listeners), "callers": access.summary}
    if settings.galleries is not None:
        fields["galleries"] = str(settings.galleries)
    logger.info("serving", extra={"fields": fields})
    # After the drain, uvicorn sends the signal to its own process again. The exit status must be 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if not serve(open_app, settings, listeners, GRACE_S):
        sys.exit(1)


def _with_galleries(settings: Settings) -> Settings:
    """Return the settings; without bundles and galleries, with the default directory of galleries.

    Exits if this directory cannot be created.
    """
    if settings.bundle or settings.galleries is not None:
        return settings
    place = DEFAULT_GALLERIES.absolute()
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        refuse(
            f"There is no bundle to serve, and the directory {place} for galleries cannot be "
            f"created ({error.strerror}). Set VOUCH_BUNDLE to a bundle, or VOUCH_GALLERIES to a "
            "directory that the service can write."
        )
    return settings.model_copy(update={"galleries": place})


def _require_galleries(settings: Settings) -> None:
    """Exit if the directory of galleries cannot be used."""
    if settings.galleries is None:
        return
    try:
        GalleryFolder(settings.galleries, settings.max_galleries)
    except WriteError as error:
        refuse(
            f"VOUCH_GALLERIES: {settings.galleries} cannot be used ({_cause(error)}). Name a "
            "directory that the service can write."
        )


def _require_certificate(settings: Settings) -> None:
    """Exit if HTTPS has no usable certificate and key."""
    if settings.tls_cert is None:
        if settings.tls_key is not None:
            refuse("VOUCH_TLS_KEY needs VOUCH_TLS_CERT, the certificate of this key.", 2)
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:  # without a password, because no user can type one
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except OSError as error:
        is_content = isinstance(error, ssl.SSLError)
        why = "no PEM certificate with its private key" if is_content else error.strerror
        refuse(f"VOUCH_TLS_CERT, VOUCH_TLS_KEY: cannot be used ({why}).", 2)


def _require_feedback(settings: Settings) -> None:
    """Exit if the file for feedback cannot be used, or is missing and needed."""
    if settings.feedback is None:
        for name in ("review_reasons", "query_retention_s"):
            if getattr(settings, name):
                refuse(f"VOUCH_{name.upper()} needs VOUCH_FEEDBACK, the file for reviews.", 2)
        return
    try:
        FeedbackLog(settings.feedback).check()
    except WriteError as error:
        refuse(f"VOUCH_FEEDBACK: {settings.feedback} cannot be used ({_cause(error)}).")


def _cause(error: WriteError) -> object:
    """Return the reason of the system or of SQLite for an error, without its advice."""
    cause = error.__cause__ or error
    return cause.strerror if isinstance(cause, OSError) else cause


def _open_app(
    settings: Settings, access: Access, drain: Drain, shared: Path | None = None
) -> ASGIApp:
    """Open the bundles and the application of a process.

    Raises
    ------
    VouchError : a bundle cannot be served.
    """
    raise_gc_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    open_encoder: OpenFound = partial(EncoderProcess, cuda_graphs=settings.cuda_graphs)
    open_one = partial(open_served, settings, SharedEncoders(open_encoder))
    bundles = open_bundles(settings.bundle, open_one)
    app = create_app(settings, bundles, access, open_one, shared, drain)
    del bundles  # a replaced bundle can then be freed
    freeze_garbage()
    return app


def _begun(app: ASGIApp, drain: Drain, settings: Settings) -> ASGIApp:
    """Return the application; from now on, stop signals start the drain.

    If the application cannot start, it prints one line in place of a traceback.
    """
    drain.follow_signals()

    async def begun(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_words(message: Message) -> None:
            error = sys.exception()  # Starlette sends the message while it handles the error
            if message["type"] == _STARTUP_FAILED and isinstance(error, VouchError):
                say(_message(error, settings))
                message = {"type": _STARTUP_FAILED}  # without the traceback
            await send(message)

        await app(scope, receive, send_in_words if scope["type"] == "lifespan" else send)

    return begun


_STARTUP_FAILED = "lifespan.startup.failed"


def _open_in_worker(settings: Settings) -> ASGIApp:
    """Open the application in a worker process.

    If the application cannot be opened and no worker serves yet, the process ends with
    `STARTUP_FAILURE`. uvicorn then ends all workers.
    """
    log_as_json(secrets=settings.secrets)
    tune_malloc()
    shared = shared_directory()
    if shared is None:
        raise RuntimeError("not in a worker")
    join_workers(shared)
    if settings.recalibrate and not is_first_worker(shared):
        settings = settings.model_copy(update={"recalibrate": False})
    drain = Drain(settings.drain_s)
    try:
        app = _open_app(settings, open_access(settings), drain, shared)
        return _begun(app, drain, settings)
    except (VouchError, OSError) as error:
        refuse(_message(error, settings), 1 if n_workers(shared) else STARTUP_FAILURE)


def _message(error: VouchError | OSError, settings: Settings) -> str:
    """Return the message of an error; for `GalleryUnavailable`, add the internal reason."""
    if isinstance(error, VouchError):
        text = with_reason(error)
    elif error.filename is None:
        text = f"{error}."
    else:
        text = f"{error.filename} cannot be used: {error.strerror}."
    return Redaction(settings.secrets)(text)


def _url(settings: Settings, listeners: Sequence[socket.socket]) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{listeners[0].getsockname()[1]}/"  # the real port, also for port 0


def _listeners(settings: Settings) -> list[socket.socket]:
    until = time.monotonic() + IN_USE_S
    has_said = False
    while True:
        try:
            return open_listeners(settings.host, settings.port, settings.processes)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                why = (error.strerror or str(error)).lower()
                refuse(
                    f"Cannot listen on {settings.host}, port {settings.port}: {why}. Set another "
                    "host or port."
                )
        if not has_said:
            fields = {"host": settings.host, "port": settings.port, "seconds": IN_USE_S}
            logger.warning("address in use, trying again", extra={"fields": fields})
            has_said = True
        time.sleep(0.1)


def open_served(settings: Settings, encoders: SharedEncoders, path: Path) -> Bundle:
    """Open a bundle. The encoder runs in a separate process, which several bundles can share."""
    return open_bundle(
        path,
        settings.provider,
        settings.encoder_threads,
        encoders.open,
        settings.database,
        [read_public_key(file) for file in settings.bundle_keys],
        encoders.open_text,
    )


def open_bundles(paths: Sequence[Path], open_one: Callable[[Path], Bundle]) -> list[Bundle]:
    """Open all bundles; their galleries must have different names."""
    bundles = [open_one(path) for path in paths]
    names = [bundle.name for bundle in bundles]
    if len(set(names)) != len(names):
        raise BundleMismatch(f"Two bundles hold a gallery of the same name: {sorted(names)}.")
    for bundle in bundles:
        fields = {
            "gallery": bundle.name,
            "bundle": bundle.manifest.id,
            "items": bundle.retriever.gallery.n_items,
            "provider": bundle.retriever.encoder.provider,
        }
        logger.info("bundle opened", extra={"fields": fields})
    return bundles
