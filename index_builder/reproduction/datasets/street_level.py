"""Reader of Mapillary Street-Level Sequences (MSLS), a data set for visual place recognition."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets.images import LabelledImages, from_files, joined
from index_builder.reproduction.datasets.official import Official, Origin, Publication
from model_store.errors import DatasetError

TRAIN_CITIES = (
    "trondheim", "london", "boston", "melbourne", "amsterdam", "helsinki", "tokyo", "toronto",
    "saopaulo", "moscow", "zurich", "paris", "bangkok", "budapest", "austin", "berlin", "ottawa",
    "phoenix", "goa", "amman", "nairobi", "manila",
)  # fmt: skip
TEST_CITIES = ("cph", "sf")
"""The validation cities of MSLS, Copenhagen and San Francisco. The protocol uses these cities for
the test, because the positions in the official test cities are not published."""

CELL = 25.0
"""Side of a square in metres; training images in the same square have the same label."""

_APART = 1e8
"""Offset between cities in metres, because places in different UTM zones can have the same
coordinates."""

MSLS = Publication(
    "MSLS",
    "msls",
    "train_val/<city>/{query,database}/ with images/<key>.jpg, postprocessed.csv and raw.csv",
    "https://www.mapillary.com/dataset/places",
    {},  # releases have different numbers of images, so cities are counted instead
)


@dataclass(frozen=True, slots=True)
class StreetImages:
    """Street-level images with their positions.

    Attributes
    ----------
    official : parts ``train``, ``query`` and ``database``.
    positions : id → city, easting and northing in metres (UTM).
    """

    official: Official
    positions: Mapping[str, tuple[str, float, float]]


def msls(origin: Origin) -> StreetImages:
    """Load MSLS (Warburg et al. 2020) for searching single images, without panoramas.

    A training label is a square of `CELL` metres in one city. In the test, an item is a match if it
    is near the query.

    Raises
    ------
    DatasetError
    """
    cities = [*TRAIN_CITIES, *TEST_CITIES]
    home = MSLS.require(origin, "train_val")
    missing = [city for city in cities if not (home / city).is_dir()]
    if missing and (not origin.allow_partial or not _has_both(cities, missing)):
        raise DatasetError(
            f"MSLS: {len(missing)} of {len(cities)} cities are missing ({', '.join(missing)}). "
            f"{MSLS.how_to_get(origin)}"
        )
    positions: dict[str, tuple[str, float, float]] = {}
    parts: dict[str, list[LabelledImages]] = {"train": [], "query": [], "database": []}
    for city in (city for city in cities if city not in missing):
        for side in ("query", "database"):
            images = _images(origin, city, side, positions)
            parts["train" if city in TRAIN_CITIES else side].append(images)
    official = {part: joined(*images) for part, images in parts.items()}
    empty = [part for part, images in official.items() if not len(images)]
    if empty:
        raise DatasetError(f"MSLS: no images of {', '.join(empty)}. {MSLS.how_to_get(origin)}")
    partial = {"MSLS, cities": f"without {', '.join(missing)}"} if missing else {}
    return StreetImages(Official(official, partial), positions)


def _has_both(cities: list[str], missing: list[str]) -> bool:
    there = set(cities) - set(missing)
    return bool(there & set(TRAIN_CITIES)) and bool(there & set(TEST_CITIES))


def _images(
    origin: Origin, city: str, side: str, positions: dict[str, tuple[str, float, float]]
) -> LabelledImages:
    folder = f"train_val/{city}/{side}"
    panoramas = {
        row["key"]: row["pano"] == "True"
        for row in _table(MSLS.require(origin, f"{folder}/raw.csv"), ("key", "pano"))
    }
    rows = list(
        _table(MSLS.require(origin, f"{folder}/postprocessed.csv"), ("key", "easting", "northing"))
    )
    wanted = {
        f"{folder}/images/{row['key']}.jpg": (float(row["easting"]), float(row["northing"]))
        for row in rows
        if not panoramas.get(row["key"], False)
    }
    names, labels = MSLS.existing(
        origin, ".", list(wanted), lambda name: _square(city, *wanted[name])
    )
    positions |= {name: (city, *wanted[name]) for name in names}
    return from_files(origin.root / MSLS.folder, names, labels)


def _square(city: str, easting: float, northing: float) -> str:
    return f"{city} {int(easting // CELL)} {int(northing // CELL)}"


def _table(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        lacking = set(columns) - set(reader.fieldnames or ())
        if lacking:
            raise DatasetError(f"{path} has no column {', '.join(sorted(lacking))}.")
        yield from reader


def coordinates(
    images: LabelledImages, positions: Mapping[str, tuple[str, float, float]]
) -> NDArray[np.float64]:
    """Return positions (N, 2) of images in metres; different cities are far apart."""
    cities = {city: place for place, city in enumerate((*TRAIN_CITIES, *TEST_CITIES))}
    found = [positions[name] for name in images.ids]
    return np.array([(east + _APART * cities[city], north) for city, east, north in found])
