"""Bundles and logs of changes with random damage: refused by name, or as they were."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.errors import VouchError
from model_store.gallery import Delete
from model_store.images import decode_image
from model_store.records import Match
from tests.support.live_bundles import opened, upsert
from tests.torture.outcome import Outcome, Place
from tests.torture.small_galleries import contents, small_gallery

N_WRITES = 30

Rng = np.random.Generator


def flip(data: bytes, rng: Rng) -> bytes:
    """One bit is another."""
    return _with(data, rng, lambda old: bytes([old[0] ^ 1 << int(rng.integers(8))]), 1)


def scribble(data: bytes, rng: Rng) -> bytes:
    """Some bytes are random ones."""
    return _with(data, rng, lambda old: rng.bytes(len(old)), int(rng.integers(1, 500)))


def blank(data: bytes, rng: Rng) -> bytes:
    """A page is empty."""
    return _with(data, rng, lambda old: bytes(len(old)), 4096)


def cut(data: bytes, rng: Rng) -> bytes:
    """The end is missing."""
    return data[: int(rng.integers(len(data)))]


def longer(data: bytes, rng: Rng) -> bytes:
    """Something follows the end."""
    return data + rng.bytes(int(rng.integers(1, 5000)))


KINDS: tuple[Callable[[bytes, Rng], bytes], ...] = (flip, scribble, blank, cut, longer)


def _with(data: bytes, rng: Rng, other: Callable[[bytes], bytes], n_bytes: int) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + other(data[at : at + n_bytes]) + data[at + n_bytes :]


def damage(files: list[Path], rng: Rng) -> str:
    """Damage one of some files, or remove it; returns what was done."""
    path = files[int(rng.integers(len(files)))]
    if rng.uniform() < 0.1 or not path.stat().st_size:
        path.unlink()
        return f"{path.name} removed"
    kind = KINDS[int(rng.integers(len(KINDS)))]
    path.write_bytes(kind(path.read_bytes(), rng))
    return f"{path.name}: {(kind.__doc__ or '').rstrip('.')}"


def attack_logs(place: Place, seconds: float, seed: int) -> Outcome:
    """Damage the log of a gallery, closed or as a kill leaves it, and open the gallery."""
    root = small_gallery(place.folder)
    live, rng = opened(root), np.random.default_rng(seed)
    for number in range(N_WRITES):
        live.commit([upsert(f"new-{number % 20}", number)])
    live.commit([Delete("new-3"), Delete("new-4")])
    truth = contents(live)
    killed, closed = place.folder / "killed", place.folder / "closed"
    shutil.copytree(root, killed)  # with a write-ahead log that nobody has folded in
    live.close()
    shutil.copytree(root, closed)

    def damaged(copy: Path) -> str:
        return damage(sorted((copy / "changes").glob("*.sqlite*")), rng)

    def same(copy: Path) -> bool:
        found = opened(copy)
        try:
            return contents(found) == truth
        finally:
            found.close()

    return _attack(lambda n: (killed, closed)[n % 2], place, seconds, damaged, same)


def attack_bundles(place: Place, seconds: float, seed: int) -> Outcome:
    """Damage one file of a bundle, open it, and search."""
    rng = np.random.default_rng(seed)
    whole = open_bundle(place.bundle, "cpu", threads=1)
    gallery = whole.retriever.gallery
    item = gallery.items(rng.permutation(gallery.n_items)[:1])[0]
    pixels = whole.retriever.prepare(decode_image(gallery.thumbnail(item.id).data))
    answer = partial(_answer, pixels=pixels)
    truth = answer(whole)

    def damaged(copy: Path) -> str:
        return damage(sorted(path for path in copy.rglob("*") if path.is_file()), rng)

    def same(copy: Path) -> bool:
        return answer(open_bundle(copy, "cpu", threads=1)) == truth

    return _attack(lambda _: place.bundle, place, seconds, damaged, same)


def _answer(bundle: Bundle, pixels: NDArray[np.uint8]) -> tuple[Match, ...]:
    return bundle.retriever.find(bundle.retriever.embed(pixels[None])[0], 10).matches


def _attack(
    of: Callable[[int], Path],
    place: Place,
    seconds: float,
    damaged: Callable[[Path], str],
    same: Callable[[Path], bool],
) -> Outcome:
    outcome, until, n_refused = Outcome(), time.monotonic() + seconds, 0
    copy = place.folder / "copy"
    while outcome.n < 2 or time.monotonic() < until:
        shutil.copytree(of(outcome.n), copy)
        how = damaged(copy)
        outcome.n += 1
        try:
            if not same(copy):
                outcome.violations.append(f"{how}: wrong, and not refused")
        except VouchError:
            n_refused += 1
        except Exception as error:
            outcome.violations.append(f"{how}: {error!r}")
        shutil.rmtree(copy)
    outcome.figures |= {"refused": n_refused, "harmless": outcome.n - n_refused}
    return outcome
