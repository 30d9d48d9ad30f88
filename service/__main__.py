"""``vouch-serve``: serve one or more bundles over HTTP."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvicorn
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from model_store.errors import BundleMismatch, VouchError
from model_store.retriever import Bundle, open_bundle
from service.access import open_access
from service.app import create_app
from service.encoding import EncoderProcess
from service.logs import log_as_json
from service.memory import keep_freed_memory, look_for_garbage_seldom
from service.settings import Settings

logger = logging.getLogger("service")

GRACE_S = 20
"""How long requests in flight may take to end after a SIGTERM; below Docker's own 30 in compose."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; exit status 1 and one line on standard error when it cannot serve."""
    options = _parser().parse_args(arguments)
    given = {name: value for name, value in vars(options).items() if value is not None}
    bundle_paths: list[Path] = given.pop("bundle", [])
    try:
        settings = Settings(**given)
        log_as_json()
        keep_freed_memory()
        look_for_garbage_seldom()
        access = open_access(settings)
        bundles = open_bundles(bundle_paths or [settings.bundle], settings)
    except ValidationError as error:
        _refuse("; ".join(f"{_variable(entry)}: {entry['msg']}" for entry in error.errors()))
    except (VouchError, SettingsError) as error:
        _refuse(str(error))
    shown_host = f"[{settings.host}]" if ":" in settings.host else settings.host
    fields = {"url": f"http://{shown_host}:{settings.port}/", "callers": access.summary}
    logger.info("serving", extra={"fields": fields})
    # Uvicorn drains, then sends itself the signal again: ended as asked, that is success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        create_app(settings, bundles, access, partial(open_served, settings)),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def _variable(entry: ErrorDetails) -> str:
    return f"VOUCH_{entry['loc'][0]}".upper()


def _refuse(why: str) -> NoReturn:
    print(f"vouch-serve: {why}", file=sys.stderr)
    sys.exit(1)


def open_served(settings: Settings, path: Path) -> Bundle:
    """Open a bundle whose encoder runs in a process of its own."""
    return open_bundle(
        path, settings.provider, settings.encoder_threads, EncoderProcess, settings.milvus
    )


def open_bundles(paths: Sequence[Path], settings: Settings) -> list[Bundle]:
    """Open every bundle; their galleries must have different names."""
    bundles = [open_served(settings, path) for path in paths]
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vouch-serve",
        description="Serve bundles over HTTP. Every setting is also an environment variable: "
        + ", ".join(f"VOUCH_{name.upper()}" for name in Settings.model_fields)
        + ". Options win over variables.",
    )
    parser.add_argument(
        "--bundle",
        type=Path,
        action="append",
        help="a bundle, or a directory of bundles with a CURRENT; may be given again",
    )
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on")
    parser.add_argument("--provider", choices=["auto", "cpu", "cuda"], help="where to encode")
    return parser


if __name__ == "__main__":
    main()
