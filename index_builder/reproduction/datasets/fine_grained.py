"""Readers of CUB-200-2011 (birds) and Cars-196: half of the classes are for training."""

from __future__ import annotations

from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from index_builder.datasets.images import from_files
from index_builder.reproduction.datasets.official import Official, Origin, Publication
from index_builder.reproduction.datasets.tables import rows_of
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
