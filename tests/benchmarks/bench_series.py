"""Series of photographs: what does a build do if they are not named, and does it warn?

Caltech-101 (20 kinds, 10 others absent) and CUB (7 birds, 3 absent). Of each kind, 12 photographs
are in the gallery and 6 are asked later. As in a survey of rare animals, there are also 40 kinds of
Caltech-101 with two photographs each. A series is made from a photograph of the gallery: each of
its images shows four fifths of the scene (a random part, with a random brightness). Each draw is
built by `vouch-build all --images TABLE`, with a column `group` that names the series, and without
it. The photographs that are asked later are no part of a series.

- the share of images that the build takes for images of a series, and whether it warns;
- of the photographs asked later: the share of `match`, how much of it is wrong, and the share that
  is flagged `out_of_distribution`. Of the absent photographs: the share of `match`.

    python -m tests.benchmarks.bench_series [DRAWS]

Reads VOUCH_DATA_DIR; writes docs/measured/series.json. A quarter of an hour for one draw.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

import vouch_search
from model_store.bundles.bundle import open_bundle
from tests.benchmarks.measured import mean_rows, record_table
from tests.benchmarks.photographs import unpacked
from tests.benchmarks.preconditions import data_dir
from tests.support.build_command import vouch_build
from tests.support.narrowing import not_none

DRAWS = 3
N_LATER = 6


@dataclass(frozen=True)
class World:
    """Photographs of a data set.

    Attributes
    ----------
    source : the folder of the data set below VOUCH_DATA_DIR.
    n_labels, n_absent : number of labels in the gallery, and of absent labels.
    n_photographs : number of photographs of each label in the gallery; each becomes a series.
    lengths : lengths of the series; 1 for no series.
    """

    source: str
    n_labels: int
    n_absent: int
    n_photographs: int
    lengths: tuple[int, ...]


WORLDS = {
    "Caltech-101": World("caltech101_half", 20, 10, 12, (1, 2, 4, 10)),
    "CUB": World("cub_first10", 7, 3, 12, (1, 2, 4, 10)),
    "Caltech-101, rare kinds": World("caltech101_half", 40, 10, 2, (3,)),
}
TITLES = {
    "series_share": "images of a series, by the build",
    "warned": "builds that warn",
    "match": "`match`",
    "wrong": "of these wrong (0.05 allowed)",
    "flagged": "`out_of_distribution`",
    "absent_match": "absent: `match`",
}


def series(photograph: Path, length: int, into: Path, generator: np.random.Generator) -> list[Path]:
    """Write the images of a series; return their paths. A series of one is the photograph."""
    with Image.open(photograph) as opened:
        scene = opened.convert("RGB")
    paths = []
    for place in range(length):
        image = scene
        if length > 1:
            size = np.array(scene.size)
            part = np.round(0.8 * size).astype(int)
            left, top = (int(generator.integers(0, room + 1)) for room in size - part)
            image = scene.crop((left, top, left + int(part[0]), top + int(part[1])))
            image = ImageEnhance.Brightness(image).enhance(generator.uniform(0.8, 1.2))
        paths.append(into / f"{photograph.parent.name}-{photograph.stem}-{place}.jpg")
        image.save(paths[-1], quality=92)
    return paths


def build(rows: Sequence[tuple[str, str, str]], named: bool, where: Path) -> dict[str, object]:
    """Build a gallery of images (path, label, series); return the outcome that `--json` prints."""
    with (where / "gallery.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "group"][: 2 + named])
        writer.writerows(row[: 2 + named] for row in rows)
    done = vouch_build("all", "--images", "gallery.csv", "--name", "it", "--json", cwd=where)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def measure(
    world: World, source: Path, length: int, named: bool, seed: int
) -> dict[str, float | None]:
    """Build one draw, and ask it."""
    generator = np.random.default_rng([seed, length])
    kinds = generator.permutation(sorted(path for path in source.iterdir() if path.is_dir()))
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        rows, later, absent = [], [], []
        for place, kind in enumerate(kinds[: world.n_labels + world.n_absent]):
            photographs = generator.permutation(sorted(kind.iterdir()))
            asked = photographs[-N_LATER:]
            if place >= world.n_labels:
                absent += list(asked)
                continue
            later += list(asked)
            for one in photographs[: world.n_photographs]:
                images = series(one, length, where, generator)
                rows += [(image.name, kind.name, f"{kind.name}-{one.stem}") for image in images]
        outcome = build(rows, named, where)
        calibration = open_bundle(where / "bundles" / "it", "cpu").retriever.calibration
        with vouch_search.open(where / "bundles" / "it") as gallery:
            answers = [gallery.search(path) for path in later]
            of_absent = [gallery.search(path) for path in absent]
    is_match = np.array([one.verdict == "match" for one in answers])
    right = np.array([one.results[0].label for one in answers]) == [p.parent.name for p in later]
    flagged = [one.verdict == "out_of_distribution" for one in answers]
    lines = outcome["lines"]
    assert isinstance(lines, list)
    return {
        "series_share": not_none(calibration).report["series_share"],
        "warned": float(any(line["code"] == "series" for line in lines)),
        "match": float(is_match.mean()),
        "wrong": float((~right)[is_match].mean()) if is_match.any() else None,
        "flagged": float(np.mean(flagged)),
        "absent_match": float(np.mean([one.verdict == "match" for one in of_absent])),
    }


def main(n_draws: int) -> None:
    """Measure, print, write."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, world in WORLDS.items():
            source = Path(folder) / world.source
            if not source.exists():
                source.mkdir()
                unpacked(world.source, data_dir(), source)
            (root,) = source.iterdir()
            for length in world.lengths:
                for named in (False, True)[: 1 + (length > 1)]:
                    kind = f"series of {length}, {'named' if named else 'not named'}"
                    title = f"{name}, {kind if length > 1 else 'no series'}"
                    results[title] = [
                        measure(world, root, length, named, seed) for seed in range(n_draws)
                    ]
                    print(title, *results[title], sep="\n  ", flush=True)
    rows = mean_rows(TITLES, results)
    record_table(
        "series",
        ["", *TITLES.values()],
        [
            [title, *cells]
            for title, *cells in zip(results, *(row[1:] for row in rows), strict=True)
        ],
        globals(),
        about=f"Draws of each: {n_draws}. Mean ± standard deviation over draws.",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS)
