"""Real encoders and images of other kinds, as the outlier detector of a gallery sees them.

Photographs (Caltech-101), birds (CUB) and characters (Omniglot) through ImageNet's MobileNetV2 with
a learned whitening; CIFAR-10 through a small network that is trained more or less briefly; and
Fashion-MNIST through another, with all labels and with two withheld. Encoders are built by the
product's own steps. Reads VOUCH_DATA_DIR; encoders and signals are kept in build/outliers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import fit_detector
from index_builder.configuration.build import BuildConfig, load_config
from index_builder.datasets import LabelledImages, Splits, load_splits
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.folder import folder
from index_builder.datasets.images import joined
from index_builder.datasets.small_images import digits, idx_dataset, outliers
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from index_builder.reproduction.data_sets import Origin, chars74k, cifar10
from index_builder.reproduction.protocols import ProtocolConfig, load_protocol
from model_store.decision import OutlierDetector
from model_store.decision.outliers import averaged_features
from model_store.encoder.contract import Embeddings
from model_store.encoder.onnx import OnnxEncoder
from tests.benchmarks.photographs import WEIGHTS, unpacked
from tests.benchmarks.photographs import config_of as photographs

KEPT = Path("build/outliers")

N_GALLERY, N_QUERIES, N_OTHERS = 4000, 1000, 500
"""Images of the gallery, of its queries, and of each other kind, at most."""

EVERY_CHARACTER = 8
"""One of as many of Omniglot's characters: 120 to learn from, 83 to search."""

BATCH = 64

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """A gallery, and its outlier signals of queries and of other images.

    Attributes
    ----------
    ordinary, spoilt : (N, S) signals of the queries, and of the same queries corrupted.
    lessons : signals of outliers that a calibration may learn from, by kind.
    others : signals of outliers that are tested, by kind.
    feature_recall, embedding_recall : share of gallery images whose nearest other image has their
        label, by features and by embeddings.
    """

    name: str
    ordinary: Floats
    spoilt: Floats
    lessons: dict[str, Floats]
    others: dict[str, Floats]
    feature_recall: float
    embedding_recall: float


WorldConfig = BuildConfig | ProtocolConfig


def briefly_trained(epochs: int, images_per_label: int = 12) -> Callable[[Path], ProtocolConfig]:
    """The small network of the CIFAR-10 protocol after so many passes, of smaller batches more."""
    return lambda data: ProtocolConfig.model_validate(
        {
            "name": "cifar10",
            "dataset": {"protocol": "cifar-10", "path": data, "validation_share": 0.05},
            "network": {"trunk": "colour_cnn", "embedding_dim": 16},
            "training": {"epochs": epochs, "images_per_label": images_per_label, "margin": 0.7},
        }
    )


def small_network(*withheld: str) -> Callable[[Path], BuildConfig]:
    """Fashion-MNIST after three passes, without some of its labels."""
    fields = load_config("fashion-mnist").model_dump()
    fields["training"]["epochs"] = 3
    fields["dataset"]["withheld_labels"] = withheld
    return lambda data: BuildConfig.model_validate(fields)


def pretrained(name: str) -> Callable[[Path], BuildConfig]:
    """ImageNet's network on labels that trained nothing."""
    return lambda data: photographs(name, images_of(name, data), data / WEIGHTS)


WORLDS: dict[str, Callable[[Path], WorldConfig]] = {
    "caltech101_half": pretrained("caltech101_half"),
    "cub_first10": pretrained("cub_first10"),
    "omniglot": pretrained("omniglot"),
    "cifar10-0": briefly_trained(1, 100),
    "cifar10-1": briefly_trained(1),
    "cifar10-4": briefly_trained(4),
    "cifar10-12": briefly_trained(12),
    "fashion-mnist": small_network(),
    "fashion-mnist-8": small_network("Ankle boot", "Sandal"),
}

SHOWN: dict[str, tuple[str, ...]] = {
    "caltech101_half": ("caltech101_half",),
    "cub_first10": ("cub_first10",),
    "omniglot": ("omniglot",),
    "cifar10-0": ("cifar10",),
    "cifar10-1": ("cifar10",),
    "cifar10-4": ("cifar10",),
    "cifar10-12": ("cifar10",),
    "fashion-mnist": ("fashion-mnist",),
    "fashion-mnist-8": ("fashion-mnist",),
}
"""The kind of images that each gallery is of: no outliers to it."""


def images_of(name: str, data: Path) -> Path:
    """The folder with one sub-folder for each label."""
    place = KEPT.resolve() / "images" / name
    if not place.exists():
        place.mkdir(parents=True)
        root = unpacked(name, data, place)
        if name == "omniglot":
            for number, character in enumerate(sorted(root.iterdir())):
                if number % EVERY_CHARACTER:
                    shutil.rmtree(character)
    return place if name == "omniglot" else next(place.iterdir())


def some(images: LabelledImages, n: int, seed: int) -> LabelledImages:
    """At most ``n`` of them, in random order."""
    return images.at(np.random.default_rng(seed).permutation(len(images))[:n])


def lessons() -> Iterator[tuple[str, LabelledImages]]:
    """Outliers that a calibration may learn from."""
    crops = outliers("photographs", 0, np.random.default_rng(0))
    assert crops is not None
    yield "photographs", some(crops, N_OTHERS, 0)
    yield "digits", some(digits(), N_OTHERS, 0)


def others(data: Path) -> Iterator[tuple[str, LabelledImages]]:
    """Images of every kind, none of which is a lesson."""
    crops = outliers("photographs", 1, np.random.default_rng(1))
    assert crops is not None
    yield "photographs", crops
    yield "mnist", idx_dataset("MNIST", "t10k")
    yield "fashion-mnist", idx_dataset("FashionMNIST", "t10k")
    yield "cifar10", cifar10(Origin(data)).parts["test"]
    yield "chars74k", chars74k(Origin(data))
    for name in ("caltech101_half", "cub_first10", "omniglot"):
        yield name, folder(images_of(name, data))


def splits_of(config: WorldConfig) -> Splits:
    """The data of a build."""
    if isinstance(config, ProtocolConfig):
        return load_protocol(config).splits()
    return load_splits(config)


def built(name: str, config: WorldConfig) -> OnnxEncoder:
    """The encoder of a world, built where it is not kept."""
    run = Run(KEPT / name)
    if not (run.directory / "built").exists():
        splits = splits_of(config)
        train_step(config, run, splits)
        fit_step(config, run, splits)
        export_step(config, run, splits)
        (run.directory / "built").touch()
    return OnnxEncoder(run.staging / "encoder.onnx")


def embedded(encoder: OnnxEncoder, images: LabelledImages) -> Embeddings:
    """Embeddings with features averaged as the detector averages them."""
    parts = []
    for _, batch in images.batches(encoder.metadata.preprocessing, BATCH):
        one = encoder.encode(batch)
        k = -(-one.features.shape[1] // 2500)
        parts.append(Embeddings(one.mean, one.variance, averaged_features(one.features, k)))
    return Embeddings.concatenate(parts)


def recall_at_1(rows: NDArray[np.float32], codes: NDArray[np.int64]) -> float:
    """Share of ``rows`` (N, D), each without itself, whose nearest has their code."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -2)
    return float((codes[similarities.argmax(1)] == codes).mean())


def world(name: str, data: Path) -> World:
    """A world by name, from what is kept where it is."""
    kept = KEPT / f"{name}.npz"
    if not kept.exists():
        _observe(name, data, kept)
    with np.load(kept, allow_pickle=False) as file:
        return World(
            name,
            file["ordinary"],
            file["spoilt"],
            _prefixed(file, "lesson:"),
            _prefixed(file, "other:"),
            float(file["feature_recall"]),
            float(file["embedding_recall"]),
        )


def _prefixed(file: np.lib.npyio.NpzFile, prefix: str) -> dict[str, Floats]:
    return {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}


def _observe(name: str, data: Path, kept: Path) -> None:
    """Build a world and keep its signals."""
    config = WORLDS[name](data)
    encoder, splits = built(name, config), splits_of(config)
    queries = some(splits.evaluation.matched, N_QUERIES, 1)
    if len(splits.evaluation.matched) < N_QUERIES:
        queries = joined(splits.calibration.matched, splits.evaluation.matched)
        queries = some(queries, N_QUERIES, 1)
    gallery = some(splits.gallery, N_GALLERY, 0)
    codes = gallery.label_codes()
    embeddings = embedded(encoder, gallery)
    detector: OutlierDetector = fit_detector(embeddings, codes)

    def signals(images: LabelledImages) -> Floats:
        return detector.signals(embedded(encoder, images))

    arrays = {"ordinary": signals(queries), "spoilt": signals(corrupted(queries, 0))}
    arrays |= {f"lesson:{kind}": signals(images) for kind, images in lessons()}
    arrays |= {
        f"other:{kind}": signals(some(images, N_OTHERS, 2))
        for kind, images in others(data)
        if kind not in SHOWN[name]
    }
    for part, half in (("lesson", splits.calibration), ("other", splits.evaluation)):
        if len(half.withheld):
            arrays[f"{part}:near"] = signals(some(half.withheld, N_OTHERS, 0))
    recalls = {
        "feature_recall": np.array(recall_at_1(embeddings.features, codes)),
        "embedding_recall": np.array(recall_at_1(embeddings.mean, codes)),
    }
    np.savez(kept, **arrays, **recalls)  # type: ignore[arg-type] # numpy's stub
