"""Readers of photographs: CUB-200, Cars-196, SOP, In-Shop, LFW, Caltech-101 and MSLS."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from index_builder.datasets.images import LabelledImages, from_encoded, from_files, joined
from index_builder.reproduction.data_sets import Official, Origin, Publication, rows_of
from model_store.errors import DatasetError

N_CUB_TRAIN, N_CARS_TRAIN = 100, 98
"""Number of training classes; classes with larger numbers are test classes."""

CUB = Publication(
    "CUB-200-2011",
    "CUB_200_2011",
    "images/, images.txt, image_class_labels.txt and classes.txt (CUB_200_2011.tgz, unpacked)",
    "https://www.vision.caltech.edu/datasets/cub_200_2011/",
    {"train": (5_864, 100), "test": (5_924, 100)},
)
CARS = Publication(
    "Cars-196",
    "cars196",
    "car_ims/ (car_ims.tgz, unpacked) and cars_annos.mat",
    "https://ai.stanford.edu/~jkrause/cars/car_dataset.html, or one of its mirrors",
    {"train": (8_054, 98), "test": (8_131, 98)},
)


def cub(origin: Origin) -> Official:
    """Load CUB-200-2011 (Wah et al. 2011): classes 1 to 100 are in ``train``, others in ``test``.

    The split is the one used in metric learning (Musgrave et al. 2020). The split in the file
    train_test_split.txt is not used.

    Raises
    ------
    DatasetError
    """
    classes = dict(rows_of(CUB.require(origin, "classes.txt"), 2))
    class_of = dict(rows_of(CUB.require(origin, "image_class_labels.txt"), 2))
    paths = dict(rows_of(CUB.require(origin, "images.txt"), 2))
    try:
        numbers = {name: int(class_of[image]) for image, name in paths.items()}
        labels = {name: classes[str(number)] for name, number in numbers.items()}
    except (KeyError, ValueError) as error:
        raise DatasetError(
            f"CUB-200-2011: image_class_labels.txt or classes.txt has no entry {error}. Fetch both "
            "files again."
        ) from error
    return _halved(CUB, origin, "images", numbers, labels, N_CUB_TRAIN)


def cars(origin: Origin) -> Official:
    """Load Cars-196 (Krause et al. 2013): classes 1 to 98 are in ``train``, others in ``test``.

    Raises
    ------
    DatasetError
    """
    path = CARS.require(origin, "cars_annos.mat")
    try:
        content = loadmat(path, squeeze_me=True, struct_as_record=False)
        names = [str(name) for name in content["class_names"]]
        numbers = {
            str(one.relative_im_path).removeprefix("car_ims/"): int(getattr(one, "class"))
            for one in content["annotations"]
        }
        labels = {name: names[number - 1] for name, number in numbers.items()}
    except (MatReadError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise DatasetError(f"{path} cannot be read ({error}). Fetch it again.") from error
    return _halved(CARS, origin, "car_ims", numbers, labels, N_CARS_TRAIN)


def _halved(
    published: Publication,
    origin: Origin,
    folder: str,
    numbers: dict[str, int],
    labels: dict[str, str],
    n_train: int,
) -> Official:
    """Divide the images by class number: classes 1 to ``n_train`` are for training."""
    root = published.require(origin, folder)
    parts = {}
    for part in ("train", "test"):
        wanted = [
            name for name, number in numbers.items() if (number <= n_train) == (part == "train")
        ]
        names, of_names = published.existing(origin, folder, wanted, labels.__getitem__)
        parts[part] = from_files(root, names, of_names)
    return published.checked(origin, parts)


SOP = Publication(
    "Stanford Online Products",
    "Stanford_Online_Products",
    "Ebay_train.txt, Ebay_test.txt and the twelve folders *_final that they name",
    "https://cvgl.stanford.edu/projects/lifted_struct/",
    {"train": (59_551, 11_318), "test": (60_502, 11_316)},
)
IN_SHOP = Publication(
    "In-Shop Clothes",
    "In-shop",
    "Eval/list_eval_partition.txt, and img/ (Img/img.zip, unpacked) beside Eval/ or in Img/",
    "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    {"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},
)


def stanford_online_products(origin: Origin) -> Official:
    """Load SOP (Oh Song et al. 2016): parts ``train`` and ``test``, with different products.

    Raises
    ------
    DatasetError
    """
    parts: dict[str, LabelledImages] = {}
    root = origin.root / SOP.folder
    for part in ("train", "test"):
        # columns: image_id class_id super_class_id path
        rows = rows_of(SOP.require(origin, f"Ebay_{part}.txt"), 4, skip=1)
        products = {row[3]: row[1] for row in rows}
        names, labels = SOP.existing(origin, ".", list(products), products.__getitem__)
        parts[part] = from_files(root, names, labels)
    return SOP.checked(origin, parts)


def in_shop(origin: Origin) -> Official:
    """Load In-Shop (Liu et al. 2016): parts ``train``, ``query`` and ``gallery``.

    No item of ``train`` is in ``query`` or ``gallery``.

    Raises
    ------
    DatasetError
    """
    partition = IN_SHOP.require(origin, "Eval/list_eval_partition.txt")
    folder = "Img" if (origin.root / IN_SHOP.folder / "Img" / "img").is_dir() else "."
    rows = rows_of(partition, 3, skip=2)  # the skipped lines are a count and the column names
    item_of = {name: item for name, item, _ in rows}
    members: dict[str, list[str]] = {"train": [], "query": [], "gallery": []}
    for name, _, part in rows:
        if part not in members:
            raise DatasetError(
                f"{partition} has the unknown part {part!r}; the known parts are train, query and "
                "gallery. Fetch the file again."
            )
        members[part].append(name)
    parts: dict[str, LabelledImages] = {}
    for part, wanted in members.items():
        names, labels = IN_SHOP.existing(origin, folder, wanted, item_of.__getitem__)
        parts[part] = from_files(origin.root / IN_SHOP.folder / folder, names, labels)
    return IN_SHOP.checked(origin, parts)


LFW = Publication(
    "LFW",
    "lfw-py",
    "lfw/, lfw_funneled/ or lfw-deepfunneled/ with a folder for each person, peopleDevTrain.txt "
    "and peopleDevTest.txt",
    "http://vis-www.cs.umass.edu/lfw/, or torchvision's LFWPeople",
    {"train": (9_525, 4_038), "test": (3_708, 1_711)},
)
_FOLDERS = ("lfw-deepfunneled", "lfw_funneled", "lfw")


def lfw(origin: Origin) -> Official:
    """Load LFW (Huang et al. 2007), view 1: parts ``train`` and ``test`` with different people.

    Raises
    ------
    DatasetError
    """
    home = origin.root / LFW.folder
    folder = next((name for name in _FOLDERS if (home / name).is_dir()), "lfw")
    parts = {}
    for part, file in (("train", "peopleDevTrain.txt"), ("test", "peopleDevTest.txt")):
        path = LFW.require(origin, file)
        people = rows_of(path, 2, skip=1)  # the first line is the number of people
        try:
            wanted = [
                f"{person}/{person}_{number:04d}.jpg"
                for person, count in people
                for number in range(1, int(count) + 1)
            ]
        except ValueError as error:
            raise DatasetError(f"{path} is damaged ({error}). Fetch the file again.") from error
        names, labels = LFW.existing(origin, folder, wanted, lambda name: name.split("/")[0])
        parts[part] = from_files(home / folder, names, labels)
    return LFW.checked(origin, parts)


CALTECH = Publication(
    "Caltech-101",
    "",
    "caltech-101/101_ObjectCategories/<category>/*.jpg, or caltech101*/*.zip with the same files",
    "https://data.caltech.edu/records/mzrjq-6wc02",
    {"all": (8_677, 101)},
)
_CATEGORIES = "101_ObjectCategories"
_NO_CATEGORY = "BACKGROUND_Google"
_SUFFIXES = (".jpg", ".webp", ".png")


def caltech101(origin: Origin) -> Official:
    """Load Caltech-101 without its background category: part ``all``. A label is a category.

    Raises
    ------
    DatasetError
    """
    folder = origin.root / "caltech-101" / _CATEGORIES
    archives = sorted(origin.root.glob("caltech101*/*.zip"))
    if folder.is_dir():
        names = sorted(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.suffix in _SUFFIXES
        )
        names = [name for name in names if not name.startswith(_NO_CATEGORY)]
        images = from_files(folder, names, [name.split("/")[0] for name in names])
    elif archives:
        images = _archived(archives[0])
    else:
        raise DatasetError(f"Caltech-101: {folder} is missing. {CALTECH.how_to_get(origin)}")
    return CALTECH.checked(origin, {"all": images})


def _archived(path: Path) -> LabelledImages:
    """Read the images of a .zip file; memory holds encoded images, not pixels."""
    try:
        with zipfile.ZipFile(path) as archive:
            contents = {
                entry: archive.read(entry)
                for entry in sorted(archive.namelist())
                if entry.endswith(_SUFFIXES) and _NO_CATEGORY not in entry
            }
    except (OSError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} cannot be read ({error}). Fetch it again.") from error
    names, files = list(contents), list(contents.values())
    return from_encoded(names, [name.split("/")[-2] for name in names], files.__getitem__)


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
