"""One caller sends unusual images: what becomes of the answers to others, over HTTP."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.testclient import TestClient

from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted
from model_store.bundles.bundle import Bundle
from model_store.bundles.manifest import read_manifest
from model_store.gallery import FaissGallery
from model_store.retriever import Retriever
from service.app import create_app
from service.settings import Settings
from tests.end_to_end.keys import KeysFile, bearer
from tests.support.local_client import LocalClient

from .deleted import published
from .measures import Record, calibrate
from .worlds import World

N_ASKED, N_UNUSUAL = 60, 1000
"""Ordinary images, asked before and after so many uploads by another key: half of them corrupted,
half of labels that the gallery does not hold."""

_OF_REQUEST = ("timing_ms", "cache", "next_cursor", "request_id")
"""Fields of an answer that are of the request and not of the image."""


def measure_streams(world: World, seed: int, directory: Path) -> Record:
    """Serve the world, and ask the same images before and after another caller's uploads.

    Parameters
    ----------
    directory : where the gallery of ``world`` lies; it becomes a bundle.

    Returns
    -------
    matched : ordinary images that got `match` before.
    lost : share of these that do not get it afterwards, or lose the guarantee.
    changed : share of all whose answer differs in any value.
    alarmed : whether the drift test fired for the other caller.
    """
    calibration = calibrate(world, seed)
    root = published(world, directory)
    bundle = next(one for one in root.iterdir() if one.is_dir())
    retriever = Retriever(world.encoder, FaissGallery(bundle), calibration)
    keys = KeysFile(directory.parent / "keys")
    one, other = (bearer(keys.make("read", name=name)) for name in ("one", "other"))
    with _served(Bundle(bundle, read_manifest(bundle), retriever), keys.path) as client:
        ordinary = _files(world.matched, N_ASKED)
        unusual = [
            *_files(corrupted(world.matched.at(range(N_ASKED, len(world.matched))), seed)),
            *_files(world.absent),
        ]
        before = [_asked(client, image, one) for image in ordinary]
        half = N_UNUSUAL // 2
        sent = [_asked(client, image, other) for image in [*unusual[:half], *unusual[-half:]]]
        after = [_asked(client, image, one) for image in ordinary]
    matched = [
        (first, second)
        for first, second in zip(before, after, strict=True)
        if first["verdict"] == "match"
    ]
    lost = [
        second["verdict"] != "match" or first["guaranteed"] != second["guaranteed"]
        for first, second in matched
    ]
    return {
        "matched": len(matched),
        "lost": sum(lost) / max(len(lost), 1),
        "changed": sum(a != b for a, b in zip(before, after, strict=True)) / len(before),
        "alarmed": any(one["bundle"]["calibration"]["status"] == "drifting" for one in sent),
    }


@contextmanager
def _served(bundle: Bundle, keys: Path) -> Iterator[TestClient]:
    """Serve a bundle in this process, to callers with keys."""
    settings = Settings(decoders=0, recalibrate=False, keys=keys)
    with LocalClient(create_app(settings, [bundle])) as client:
        yield client


def _files(images: LabelledImages, n: int | None = None) -> list[bytes]:
    """Return the first ``n`` images as PNG files."""
    files = []
    for place in range(len(images) if n is None else n):
        file = io.BytesIO()
        Image.fromarray(images.pixels(place)).save(file, "PNG")
        files.append(file.getvalue())
    return files


def _asked(client: TestClient, image: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """Return the answer to an image, without what is of the request."""
    response = client.post("/v1/galleries/g/search", files={"image": image}, headers=headers)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return {name: value for name, value in answer.items() if name not in _OF_REQUEST}
