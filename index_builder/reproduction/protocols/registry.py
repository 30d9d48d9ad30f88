"""All protocols by name, with their configurations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from index_builder.configuration.build import CalibrationConfig
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.objective import OF_VIEWS
from index_builder.configuration.posterior import LaplaceConfig
from index_builder.configuration.problems import Problems
from index_builder.configuration.schema import Section
from index_builder.datasets.small_images import DATA_DIR_VARIABLE
from index_builder.reproduction.data_sets import Origin
from index_builder.reproduction.protocols import published
from index_builder.reproduction.protocols.loaders import (
    load_caltech,
    load_cars,
    load_cifar10,
    load_cub,
    load_digits,
    load_fashion_mnist,
    load_fashion_mnist_authors,
    load_fashion_mnist_small,
    load_fashion_mnist_tiny,
    load_in_shop,
    load_lfw,
    load_msls,
    load_omniglot,
    load_omniglot_small,
    load_stanford_online_products,
)
from index_builder.reproduction.protocols.protocol import Loading, Protocol, ProtocolData
from model_store.errors import ConfigError


class ProtocolDataset(Section):
    """The table `[dataset]` of a protocol."""

    protocol: str = Field(description="A name of `PROTOCOLS`.")
    path: Path | None = Field(
        None, description="The folder of data sets. [default: VOUCH_DATA_DIR]"
    )
    allow_partial: bool = Field(False, description="Accept incomplete data.")
    download: bool = Field(False, description="Download missing data, if torchvision can.")
    validation_share: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Share of each label's training images that is used for validation.",
    )


class ProtocolConfig(EncoderConfig):
    """Configuration of an encoder, the data of a protocol, and the calibration."""

    dataset: ProtocolDataset
    calibration: CalibrationConfig = CalibrationConfig()


_INTERIM = (
    "The papers' figures are interim results in the history of the authors' repository. The "
    "authors chose checkpoints on the test images; here nothing is chosen on them."
)

_OURS = "A protocol for comparing objectives in minutes; it is not from a paper."

EXPECTED_ABSENT = 0.001
"""Assumed share of absent queries. Every test query has a match, so this share is small. The share
is above zero, because otherwise the probability of "no match" would be zero."""

_LAPLACE = LaplaceConfig(structure="diagonal", prior_precision=1.0, temperature="validation")
"""Configuration of Laplace posteriors. The prior is the papers' prior; the temperature is chosen on
held-out images."""

_PHOTOGRAPHS: Mapping[str, Any] = {
    "network": {
        "trunk": "resnet50",
        "weights": "IMAGENET1K_V1",
        "last_layer": "whitening",
        "pooling": "gem",
        "embedding_dim": 512,
    },
    "training": {
        "epochs": 20,
        "labels_per_batch": 16,
        "images_per_label": 4,
        "learning_rate": 1e-5,
        "flip": True,
        "shift": 16,
    },
}
"""ResNet-50 with GeM pooling and a learned whitening, as in the Laplace paper."""

SMALLEST_CROP = 0.3
"""If a protocol has no augmentation, each view shows at least this share of the image."""

_GREY = {"training": {"epochs": 12, "images_per_label": 12}}

PROTOCOLS: Mapping[str, Protocol] = {
    "digits": Protocol(
        "scikit-learn's digits",
        load_digits,
        {"training": {"epochs": 12, "labels_per_batch": 8, "images_per_label": 16, "shift": 2}},
        notes=("A protocol for trying the command; it is not from a paper.",),
    ),
    "fashion-mnist": Protocol(
        "Fashion-MNIST / MNIST",
        load_fashion_mnist,
        _GREY,
        notes=(
            (
                "Queries are the test images. The gallery is the training images, except 5,000 "
                "for calibration. For the protocol of the papers' results, see "
                "fashion-mnist-authors."
            ),
        ),
    ),
    "fashion-mnist-small": Protocol(
        "A tenth of Fashion-MNIST / MNIST",
        load_fashion_mnist_small,
        _GREY,
        notes=(_OURS,),
    ),
    "fashion-mnist-tiny": Protocol(
        "1,000 of Fashion-MNIST / MNIST",
        load_fashion_mnist_tiny,
        {"training": {"epochs": 4, "images_per_label": 12}},
        notes=(_OURS,),
    ),
    "omniglot-small": Protocol(
        "Omniglot, 60 characters / 40 others",
        load_omniglot_small,
        {"training": {"epochs": 3, "labels_per_batch": 20, "images_per_label": 8}},
        notes=(_OURS,),
    ),
    "caltech-101": Protocol(
        "Caltech-101, other categories / Chars74K",
        load_caltech,
        {
            "network": {
                "trunk": "mobilenet_v2",
                "weights": "IMAGENET1K_V1",
                "frozen": True,
                "last_layer": "whitening",
                "embedding_dim": 128,
                "input_size": 160,
            },
            "training": {
                "epochs": 20,
                "labels_per_batch": 15,
                "images_per_label": 8,
                "learning_rate": 1e-4,
            },
        },
        notes=(_OURS, "Only the last layer is trained; it starts as a whitening of the features."),
    ),
    "fashion-mnist-authors": Protocol(
        "Fashion-MNIST / MNIST, the authors' setting",
        load_fashion_mnist_authors,
        {
            "network": {"embedding_dim": 3},
            "training": {"epochs": 20, "images_per_label": 12, "margin": 0.7},
        },
        published.FASHION_MNIST,
        (
            (
                "Embeddings have three dimensions, and test images are queries and gallery. "
                "12,500 training images are held out for calibration. The optimizer is AdamW "
                "with a cosine schedule; the authors use RMSprop."
            ),
            _INTERIM,
        ),
        shared_samples=True,
    ),
    "cifar-10": Protocol(
        "CIFAR-10 / SVHN",
        load_cifar10,
        {
            "network": {"trunk": "colour_cnn", "embedding_dim": 16},
            "training": {"epochs": 20, "images_per_label": 12, "margin": 0.7},
        },
        published.CIFAR10,
        (
            (
                "Queries are the test images. The gallery is the training images, except a "
                "twelfth for calibration. In the authors' code, test images are queries and "
                "gallery, so the papers' results are not comparable."
            ),
            (
                "If SVHN is missing, the outliers are characters of Chars74K. The AUROC is then "
                "not comparable with the papers' AUROC."
            ),
            _INTERIM,
        ),
    ),
    "cub-200": Protocol(
        "CUB-200-2011 / Cars-196",
        load_cub,
        _PHOTOGRAPHS,
        {**published.CUB200, **published.RECORDS["cub-200"]},
        (_INTERIM,),
    ),
    "cars-196": Protocol(
        "Cars-196 / CUB-200-2011", load_cars, _PHOTOGRAPHS, published.RECORDS["cars-196"]
    ),
    "lfw": Protocol(
        "LFW / CUB-200-2011",
        load_lfw,
        _PHOTOGRAPHS,
        published.LFW,
        (
            (
                "If a person has only one image, this image is in the gallery but is not a query. "
                "The authors use it as a query, and count it as a miss in R@1 and as a hit in "
                "mAP."
            ),
            _INTERIM,
        ),
    ),
    "stanford-online-products": Protocol(
        "Stanford Online Products",
        load_stanford_online_products,
        _PHOTOGRAPHS,
        published.RECORDS["stanford-online-products"],
    ),
    "in-shop": Protocol(
        "In-Shop Clothes Retrieval", load_in_shop, _PHOTOGRAPHS, published.RECORDS["in-shop"]
    ),
    "msls": Protocol(
        "Mapillary Street-Level Sequences",
        load_msls,
        _PHOTOGRAPHS,
        notes=(
            (
                "The test uses Copenhagen and San Francisco, because the positions in the "
                "official test cities are not published. A match is within 25 metres of the "
                "query. For training and calibration, a label is a square of 25 metres."
            ),
        ),
    ),
    "omniglot": Protocol(
        "Omniglot, other alphabets",
        load_omniglot,
        {
            "training": {
                "epochs": 10,
                "labels_per_batch": 20,
                "images_per_label": 8,
                "shift": 2,
            },
        },
        notes=(
            (
                "Every drawing of the 20 evaluation alphabets (659 characters, 20 drawings each) "
                "is a query; its gallery is all other drawings. The reproduced papers have no "
                "results for Omniglot."
            ),
        ),
    ),
}


def protocol_config(
    name: str,
    *,
    data: Path | None = None,
    seed: int = 0,
    objective: str | None = None,
    epochs: int | None = None,
    network: Mapping[str, Any] | None = None,
    device: str | None = None,
    precision: str | None = None,
    allow_partial: bool = False,
    download: bool = False,
) -> ProtocolConfig:
    """Return the configuration of a protocol.

    Parameters
    ----------
    name : a name in `PROTOCOLS`.
    data : the folder of data sets; if None, ``$VOUCH_DATA_DIR`` is used.
    objective : kind of the training objective; if None, the contrastive loss is used. If the
        objective needs views and the protocol has no augmentation, crops are added.
    epochs, network, device, precision : values that replace the protocol's values. ``network``
        replaces only the keys that it contains.
    allow_partial, download : see `Origin`.

    Raises
    ------
    KeyError : the protocol does not exist.
    ConfigError : a value is out of range.
    """
    fields = PROTOCOLS[name].fields
    options = {"epochs": epochs, "device": device, "precision": precision, "objective": objective}
    training = {
        **fields.get("training", {}),
        **{key: value for key, value in options.items() if value is not None},
    }
    if objective in OF_VIEWS and not training.keys() & {"shift", "flip"}:
        training["crop"] = SMALLEST_CROP
    tables = {
        "name": name,
        "description": PROTOCOLS[name].title,
        "seed": seed,
        "dataset": {
            "protocol": name,
            "path": data,
            "allow_partial": allow_partial,
            "download": download,
            "validation_share": 0.05 if name == "digits" else 0.02,
        },
        "network": {**fields.get("network", {}), **(network or {})},
        "training": training,
        "posterior": _LAPLACE,
        "calibration": {"expected_absent": EXPECTED_ABSENT},
    }
    try:
        return ProtocolConfig.model_validate(tables)
    except ValidationError as error:
        problems = Problems(ProtocolConfig, tables, error)
        raise ConfigError(f"{name}: {problems.of_options({})}") from error


def load_protocol(config: ProtocolConfig) -> ProtocolData:
    """Load the data of a protocol; the seed chooses the held-out images.

    Raises
    ------
    DatasetError : the data are missing or incomplete.
    ConfigError : the folder of data sets is not configured.
    """
    return _loaded(config.dataset, config.seed)


@lru_cache(maxsize=1)
def _loaded(dataset: ProtocolDataset, seed: int) -> ProtocolData:
    """Load the data; the result is cached for all methods of a seed."""
    root = dataset.path or os.environ.get(DATA_DIR_VARIABLE)
    if root is None and dataset.protocol != "digits":
        raise ConfigError(
            f"The folder of data sets is not configured. Use --data, or set {DATA_DIR_VARIABLE}."
        )
    origin = Origin(Path(root or "."), dataset.allow_partial, dataset.download)
    generator = np.random.default_rng([seed, 0])
    loading = Loading(origin, generator, dataset.validation_share)
    return PROTOCOLS[dataset.protocol].load(loading)
