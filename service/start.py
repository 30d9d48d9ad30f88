"""``vouch-serve``: serve one or more bundles over HTTP, by one process or several."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.galleries import GalleryFolder
from model_store.errors import BundleMismatch, GalleryUnavailable, VouchError
from model_store.errors.root import reason_of
from model_store.memory import freeze_garbage, raise_gc_threshold, tune_malloc
from model_store.processors import usable_processors
from model_store.signing import read_public_key
from service.command_line import refuse
from service.encoding.hub import EncoderHub
from service.encoding.hub_encoder import HubEncoder
from service.encoding.process import EncoderProcess
from service.encoding.queues import BatchLimits
from service.encoding.shared import OpenFound, SharedEncoders
from service.http.drain import Drain
from service.observability.logs import Redaction, log_as_json
from service.processes.member import Member
from service.processes.open_files import raise_file_limit
from service.processes.several import Family
from service.settings import Settings

logger = logging.getLogger("service")

GRACE_S = 20
"""Seconds that requests in flight may take to end after a SIGTERM; below the 30 s that compose
gives."""


IN_USE_S = 10.0
"""Seconds for which an address that is in use is tried again: processes whose parent was killed
may still hold it, and a service manager gives up after a few starts."""

SWITCH_INTERVAL_S = 0.0005
"""Seconds after which a thread that computes makes way for the event loop. By Python's own 0.005
each step of a request waits that long for every thread that filters or searches for others."""


def start(
    settings: Settings, arguments: Sequence[str], member: Member | None, *, is_trial: bool
) -> None:
    """Serve until a signal comes.

    Parameters
    ----------
    arguments : that the settings were read from.
    member : what the parent has handed over, if this is one of several processes.
    is_trial : whether this process only tries out how many are to be started.

    Raises
    ------
    SystemExit : with status 1 or 2, and one line on standard error, when it cannot serve.
    """
    log_as_json(secrets=settings.secrets)
    tune_malloc()
    _require_certificate(settings)
    try:
        if is_trial and member is not None:
            _try_out(settings, member)
        elif _processes(settings) == 1 or member is not None:
            _serve(settings, member)
        else:
            _serve_by_several(settings, arguments)
    except GalleryUnavailable as error:  # whose message leaves the reason to who reads this
        reason = reason_of(error)
        refuse(Redaction(settings.secrets)(f"{error} ({reason})" if reason else str(error)))
    except VouchError as error:
        refuse(str(error))


def _require_certificate(settings: Settings) -> None:
    """End the process where HTTPS has no usable certificate and key."""
    if settings.tls_cert is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:  # without a password: nobody is there to type one
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except OSError as error:
        is_content = isinstance(error, ssl.SSLError)
        why = "no PEM certificate with its private key" if is_content else error.strerror
        refuse(f"VOUCH_TLS_CERT, VOUCH_TLS_KEY: cannot be used ({why}).", 2)


def _serve_by_several(settings: Settings, arguments: Sequence[str]) -> None:
    """Start the processes that answer, run their encoders, and watch over them."""
    if settings.redis_url is None:
        refuse(
            f"--processes {settings.processes} needs --redis-url: there the processes share "
            "encodings and counts. Name a Redis, or serve by one process.",
            2,
        )
    raise_file_limit()
    open_encoder = partial(EncoderProcess, cuda_graphs=settings.cuda_graphs)
    hub = EncoderHub(open_encoder, BatchLimits.of(settings))
    n = settings.processes
    if n == "auto":
        each = settings.encoders == "each"
        n = usable_processors() if each else Family(arguments, hub.line).tried_out()
    if n == 1:
        _serve(settings, None)
    elif not Family(arguments, hub.line, _doors(settings)).run(n, GRACE_S):
        sys.exit(1)


def _serve(settings: Settings, member: Member | None) -> None:
    """Serve by this process, alone or as one of several.

    Raises
    ------
    VouchError : it cannot.
    """
    # The parent of several needs none of this: a second, and 55 MB.
    from service.access.access import open_access  # noqa: PLC0415
    from service.app import create_app  # noqa: PLC0415
    from service.http.server import serve  # noqa: PLC0415

    raise_gc_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    access = open_access(settings)
    if settings.galleries is not None:  # sooner than models are loaded
        GalleryFolder(settings.galleries, settings.max_galleries)
    raise_file_limit()
    open_encoder: OpenFound = partial(EncoderProcess, cuda_graphs=settings.cuda_graphs)
    if member is not None:
        settings, hub = settings.part(member.which, member.n), member.open_hub()
        if settings.encoders == "shared":
            open_encoder = partial(HubEncoder, hub)
    open_one = partial(open_served, settings, SharedEncoders(open_encoder))
    bundles = open_bundles(settings.bundle, open_one)
    doors = _doors(settings) if member is None else member.open_doors()
    if member is None or member.which == 0:
        fields = {"url": _url(settings, doors), "callers": access.summary}
        logger.info("serving", extra={"fields": fields})
    # Uvicorn drains, then sends itself the signal again: ended as asked, that is success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    drain = Drain(settings.drain_s)
    shared = None if member is None else member.directory
    app = create_app(settings, bundles, access, open_one, shared, drain)
    del bundles  # one that is exchanged is to be freed
    freeze_garbage()
    started = (lambda: None) if member is None else member.answers
    if not serve(app, settings, doors, drain, GRACE_S, started):
        sys.exit(1)


def _try_out(settings: Settings, trial: Member) -> None:
    """Tell the parent of this process how many it is to start."""
    from service.trial import useful_processes  # noqa: PLC0415 - as above

    raise_gc_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    encoders = SharedEncoders(partial(HubEncoder, trial.open_hub()))
    try:
        found = useful_processes(settings, open_served(settings, encoders, settings.bundle[0]))
    except VouchError as error:  # the service says itself what keeps it from serving
        fields = {"why": str(error)}
        logger.warning("processes not tried out, one will answer", extra={"fields": fields})
    else:
        os.write(trial.ready, str(found).encode())


def _processes(settings: Settings) -> int | Literal["auto"]:
    """Return how many processes are to answer; one where more could not, unless told otherwise."""
    alone = settings.processes == "auto" and (
        settings.redis_url is None or usable_processors() == 1
    )
    return 1 if alone else settings.processes


def _url(settings: Settings, doors: Sequence[socket.socket]) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{doors[0].getsockname()[1]}/"  # of port 0, the one it got


def _doors(settings: Settings) -> list[socket.socket]:
    from service.http.server import open_listeners  # noqa: PLC0415 - as above

    until = time.monotonic() + IN_USE_S
    has_said = False
    while True:
        try:
            return open_listeners(settings.host, settings.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                _refuse_address(settings, error)
        if not has_said:
            fields = {"host": settings.host, "port": settings.port, "seconds": IN_USE_S}
            logger.warning("address in use, trying again", extra={"fields": fields})
            has_said = True
        time.sleep(0.1)


def _refuse_address(settings: Settings, error: OSError) -> NoReturn:
    why = (error.strerror or str(error)).lower()
    refuse(f"Cannot listen on {settings.host}, port {settings.port}: {why}. Choose others.")


def open_served(settings: Settings, encoders: SharedEncoders, path: Path) -> Bundle:
    """Open a bundle whose encoder runs in a process of its own, as do others of that encoder."""
    return open_bundle(
        path,
        settings.provider,
        settings.encoder_threads,
        encoders.open,
        settings.milvus,
        [read_public_key(file) for file in settings.bundle_keys],
        encoders.open_text,
    )


def open_bundles(paths: Sequence[Path], open_one: Callable[[Path], Bundle]) -> list[Bundle]:
    """Open every bundle; their galleries must have different names."""
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
