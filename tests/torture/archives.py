"""Archives that were made to hurt whoever restores them: refused, or as they were backed up."""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np

from model_store.bundles.backup import SUMMARY_FILE, back_up, restore
from model_store.errors import VouchError
from tests.support.live_bundles import opened, upsert
from tests.torture.damage import KINDS, Rng
from tests.torture.outcome import Outcome, Place
from tests.torture.small_galleries import contents, everything, members, rewritten, small_gallery

PARTS = ("..", ".", "", "bundle", "changes", "CURRENT", "/etc", "a\0b", "\u202e", "x" * 300, "~")
TYPES = (
    *(tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE),
    *(tarfile.DIRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE),
)
VALUES: tuple[object, ...] = (None, -1, 2**70, 1e308, True, [], {}, "", "0" * 16, "\ud800")


def _name(rng: Rng) -> str:
    return "/".join(PARTS[i] for i in rng.integers(len(PARTS), size=rng.integers(1, 5)))


def damaged(good: Path, bad: Path, rng: Rng) -> None:
    """Bytes are others."""
    bad.write_bytes(KINDS[int(rng.integers(len(KINDS)))](good.read_bytes(), rng))


def more(good: Path, bad: Path, rng: Rng) -> None:
    """It holds something more, of any kind and name."""
    shutil.copyfile(good, bad)
    member = tarfile.TarInfo(_name(rng))
    member.type = TYPES[int(rng.integers(len(TYPES)))]
    member.linkname = _name(rng)
    content = rng.bytes(100) if member.type == tarfile.REGTYPE else b""
    member.size = len(content)
    with tarfile.open(bad, "a") as tar:
        tar.addfile(member, BytesIO(content))


def lying(good: Path, bad: Path, rng: Rng) -> None:
    """Its summary says something else."""
    said = json.loads(members(good)[SUMMARY_FILE])
    field = sorted(said)[int(rng.integers(len(said)))]
    values = (*VALUES, _name(rng), f"{rng.integers(2**62):016x}")
    said[field] = values[int(rng.integers(len(values)))]
    rewritten(good, bad, {SUMMARY_FILE: json.dumps(said)})


def renamed(good: Path, bad: Path, rng: Rng) -> None:
    """A member has another name, or is a link in place of a file."""
    with tarfile.open(good) as whole, tarfile.open(bad, "w") as tar:
        found = whole.getmembers()
        which = int(rng.integers(len(found)))
        for number, member in enumerate(found):
            file = whole.extractfile(member) if member.isfile() else None
            if number == which and rng.uniform() < 0.5:
                member.name = _name(rng)
            elif number == which:
                member.type, member.linkname = tarfile.SYMTYPE, _name(rng)
            tar.addfile(member, file if member.isreg() else None)


WAYS: tuple[Callable[[Path, Path, Rng], None], ...] = (damaged, more, lying, renamed)


def attack(place: Place, seconds: float, seed: int) -> Outcome:
    """Restore archives; nothing may appear anywhere but a whole gallery where it was asked for."""
    live, rng = opened(small_gallery(place.folder)), np.random.default_rng(seed)
    live.commit([upsert("new", 1)])
    truth = contents(live)
    live.close()
    good, bad = place.folder / "good.tar", place.folder / "bad.tar"
    back_up(place.folder / "bundles", good)
    bad.touch()
    (place.folder / "place").mkdir()
    outcome, until, n_refused = Outcome(), time.monotonic() + seconds, 0
    while outcome.n < len(WAYS) or time.monotonic() < until:
        way = WAYS[outcome.n % len(WAYS)]
        way(good, bad, rng)
        before, root = everything(place.folder), place.folder / "place" / "restored"
        outcome.n += 1
        try:
            restore(bad, root)
            restored = opened(root)
            if contents(restored) != truth:
                outcome.violations.append(f"{way.__name__}: restored, and wrong")
            restored.close()
        except VouchError:
            n_refused += 1
        except Exception as error:
            outcome.violations.append(f"{way.__name__}: {error!r}")
        shutil.rmtree(root, ignore_errors=True)
        if strange := set(everything(place.folder)) ^ set(before):
            outcome.violations.append(f"{way.__name__}: wrote {sorted(map(str, strange))[:3]}")
    outcome.figures |= {"refused": n_refused, "harmless": outcome.n - n_refused}
    return outcome
