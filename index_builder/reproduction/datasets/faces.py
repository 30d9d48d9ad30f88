"""Labeled Faces in the Wild, by person."""

from __future__ import annotations

from index_builder.datasets.images import from_files
from index_builder.reproduction.datasets.official import Official, Origin, Publication
from index_builder.reproduction.datasets.tables import rows_of
from model_store.errors import DatasetError

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
