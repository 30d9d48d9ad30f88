"""Galleries are opened when they are asked for, whatever becomes of their names meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from model_store.bundles.galleries import GalleryEntry
from service.serving.served import OnDemand, ServedGalleries

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Bundle:
    """As much of a bundle as is asked for."""

    name: str
    entry: GalleryEntry | None = None


class Engine:
    """As much of an engine as is asked for."""

    shadow = None

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    async def close(self) -> None:
        """Nothing to let go of."""


@dataclass
class Folder:
    """Galleries by name; opens them, when it is let."""

    entries: dict[str, GalleryEntry]
    opened: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    is_opened: asyncio.Event = field(default_factory=asyncio.Event)
    n_looks: int = 0

    def find(self, name: str) -> GalleryEntry | None:
        self.n_looks += 1
        assert self.n_looks < 1000, "it looks again and again, and lets nobody else do anything"
        return self.entries.get(name)

    def root(self, entry: GalleryEntry) -> Path:
        return Path(entry.name)

    def open_bundle(self, path: Path) -> Bundle:
        self.opened.append(path.name)
        return Bundle(path.name)

    async def start(self, bundle: Bundle) -> Engine:
        self.started.set()
        await self.may_start.wait()
        self.is_opened.set()
        return Engine(bundle)


def entry(name: str, gallery_id: str) -> GalleryEntry:
    return GalleryEntry(gallery_id, name, "", "", "")


def served_from(folder: Any, most_open: int) -> ServedGalleries:
    return ServedGalleries(OnDemand(folder, folder), most_open, lambda _name: None)


async def test_one_that_was_renamed_while_it_was_opened_is_opened_by_its_new_name() -> None:
    """By one who asks in the very turn of the event loop in which the opening ends."""
    folder = Folder({"old": entry("old", "id")})
    galleries = served_from(folder, 9)

    async def asks() -> Any:
        await folder.is_opened.wait()
        return await galleries.find("new")

    asking = asyncio.create_task(asks())
    opening = asyncio.create_task(galleries.find("old"))
    await folder.started.wait()
    folder.entries = {"new": entry("new", "id")}
    folder.may_start.set()
    assert (await asking).engine.bundle.name == "new"
    await asyncio.gather(opening, return_exceptions=True)
    assert folder.opened == ["old", "new"]


async def test_one_that_was_just_opened_is_not_closed_for_want_of_room() -> None:
    """Where all others are in use; there is one too many until they are not."""
    folder = Folder({name: entry(name, f"id of {name}") for name in "abc"})
    folder.may_start.set()
    galleries = served_from(folder, 1)
    with galleries.held(await galleries.find("a")):
        assert (await galleries.find("b")).engine.bundle.name == "b"
        assert [engine.bundle.name for engine in galleries.engines()] == ["a", "b"]
    await galleries.find("c")
    assert [engine.bundle.name for engine in galleries.engines()] == ["c"]
    assert folder.opened == ["a", "b", "c"]
