"""Real worlds: images through encoders that the product built, embedded once and divided often."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.configuration.build import BuildConfig, load_config
from index_builder.datasets import LabelledImages, load_splits
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.folder import folder
from index_builder.datasets.images import from_arrays, joined
from index_builder.datasets.splits import QuerySet
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from model_store.decision.outliers import averaged_features
from model_store.encoder.contract import Embeddings
from model_store.encoder.onnx import OnnxEncoder
from tests.benchmarks.photographs import WEIGHTS, unpacked
from tests.benchmarks.photographs import config_of as photographs
from tests.benchmarks.preconditions import data_dir

from .latents import TableEncoder, pictures
from .oracles import ORACLES, SAME_LABELS, told
from .worlds import World, write_gallery

KEPT = Path("build/promises")

IN_GALLERY = 0.6
"""Share of the labels that the gallery holds; the others are absent, truly."""

GALLERY_SHARE, CALIBRATION_SHARE = 0.5, 0.25
"""Of the images of a label in the gallery; the rest are test queries."""

EVERY_CHARACTER = 3
"""One of as many of Omniglot's characters: 321 to learn from, 220 to search."""

FASHION_EPOCHS, N_FASHION_ENCODERS = 3, 2
N_FASHION_GALLERY, N_FASHION_CALIBRATION, N_FASHION_TEST = 4000, 300, 1500

BATCH = 64
_MOST_FEATURES = 2500


@dataclass(frozen=True)
class Embedded:
    """Images, clean and spoilt, as an encoder sees them.

    Attributes
    ----------
    labels : (N,).
    kept_out : (N,) whether the encoder has learned nothing from images of that label.
    indexed : (N,) whether the image may stand in a gallery; else it is a query only.
    """

    clean: Embeddings
    spoilt: Embeddings
    labels: NDArray[np.str_]
    kept_out: NDArray[np.bool_]
    indexed: NDArray[np.bool_]


def real_world(name: str, seed: int, directory: Path) -> World:
    """Divide the images of a set at random: labels first, then the images of each."""
    embedded = REAL[name](seed)
    generator = np.random.default_rng([seed, 6])
    divide = _by_training if name.startswith("Fashion") else _by_labels
    gallery, calibration, withheld, matched, absent = divide(embedded, generator)
    if name != WITH_A_WITHHELD_LABEL:
        withheld, absent = withheld[:0], np.r_[withheld, absent]
    if name in ORACLES:
        withheld, absent = told(
            embedded.labels, absent, generator, same_labels=name.endswith(SAME_LABELS)
        )
    absent = generator.permutation(absent)[: max(N_FASHION_TEST, len(matched))]
    encoder = TableEncoder(embedded.clean, embedded.spoilt)
    pool = pictures(np.arange(len(embedded.labels)))

    def images(prefix: str, rows: NDArray[np.int64]) -> LabelledImages:
        return from_arrays(prefix, pool[rows], embedded.labels[rows].tolist())

    indexed = images("item", gallery)
    return World(
        name,
        encoder,
        write_gallery(directory, encoder, indexed, seed),
        indexed,
        QuerySet(images("calibration", calibration), images("withheld", withheld), None),
        images("matched", matched),
        images("absent", absent),
        {label: indexed.labels.count(label) for label in set(indexed.labels)},
        not name.startswith("Fashion"),
    )


def _by_labels(embedded: Embedded, generator: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    """Rows of gallery, calibration, no withheld, matched and absent test queries."""
    names = generator.permutation(np.unique(embedded.labels))
    n_known = round(IN_GALLERY * len(names))
    parts: tuple[list[NDArray[np.int64]], ...] = ([], [], [])
    for label in names[:n_known]:
        rows = generator.permutation(np.flatnonzero(embedded.labels == label))
        ends = np.round(np.cumsum([GALLERY_SHARE, CALIBRATION_SHARE]) * len(rows)).astype(int)
        for part, of_label in zip(parts, np.split(rows, ends), strict=True):
            part.append(of_label)
    gallery, calibration, matched = (generator.permutation(np.concatenate(part)) for part in parts)
    absent = np.flatnonzero(np.isin(embedded.labels, names[n_known:]))
    return gallery, calibration, absent[:0], matched, absent


def _by_training(
    embedded: Embedded, generator: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    """The same where labels were kept out of training: one of them may calibrate."""
    known = ~embedded.kept_out
    gallery = generator.permutation(np.flatnonzero(known & embedded.indexed))[:N_FASHION_GALLERY]
    asked = generator.permutation(np.flatnonzero(known & ~embedded.indexed))
    calibration, matched = np.split(
        asked[: N_FASHION_CALIBRATION + N_FASHION_TEST], [N_FASHION_CALIBRATION]
    )
    calibrating = generator.choice(np.unique(embedded.labels[embedded.kept_out]))
    rest = generator.permutation(np.flatnonzero(embedded.kept_out))
    of_one = embedded.labels[rest] == calibrating
    return gallery, calibration, rest[of_one][:N_FASHION_CALIBRATION], matched, rest[~of_one]


def _caltech(_: int) -> Embedded:
    return _kept("caltech101_half", lambda: _unseen(_photographs("caltech101_half")))


def _omniglot(_: int) -> Embedded:
    return _kept("omniglot", lambda: _unseen(_photographs("omniglot")))


def _birds(_: int) -> Embedded:
    """All ten birds, through the encoder that learned from Caltech's photographs."""

    def embed() -> Embedded:
        encoder = _encoder(_photographs("caltech101_half"))
        images = folder(_images("cub_first10"))
        return _embedded(encoder, images, np.ones(len(images), bool), np.ones(len(images), bool))

    return _kept("cub_first10", embed)


def _fashion(seed: int) -> Embedded:
    number = seed % N_FASHION_ENCODERS

    def embed() -> Embedded:
        fields = load_config("fashion-mnist").model_dump()
        names = sorted(set(load_splits(BuildConfig.model_validate(fields)).gallery.labels))
        withheld = (names[number], names[number + 5])
        fields["training"]["epochs"] = FASHION_EPOCHS
        fields["dataset"]["withheld_labels"] = withheld
        fields["name"] = f"fashion-{number}"
        config = BuildConfig.model_validate(fields)
        splits = load_splits(config)
        generator = np.random.default_rng(number)
        parts = [
            images.at(generator.permutation(len(images))[:n])
            for images, n in (
                (splits.gallery, 2 * N_FASHION_GALLERY),
                (joined(splits.calibration.matched, splits.evaluation.matched), 10_000),
                (joined(splits.calibration.withheld, splits.evaluation.withheld), 10_000),
            )
        ]
        images = joined(*parts)
        part = np.repeat(np.arange(3), [len(one) for one in parts])
        return _embedded(_encoder(config), images, part == 2, part == 0)

    return _kept(f"fashion-{number}", embed)


WITH_A_WITHHELD_LABEL = "Fashion-MNIST, one label withheld"

REAL: dict[str, Callable[[int], Embedded]] = {
    "Caltech-101": _caltech,
    "CUB": _birds,
    "Omniglot": _omniglot,
    "Fashion-MNIST": _fashion,
    WITH_A_WITHHELD_LABEL: _fashion,
}
"""What embeds each set, for a seed."""

REAL |= {name: REAL[name.split(",")[0]] for name in ORACLES}


PLANNED = ("Caltech-101", "Omniglot", "Fashion-MNIST")
"""Where forecasts of the number of queries are tried."""


def embed_all(names: Iterable[str]) -> None:
    """Embed the sets that are not kept; the first time takes minutes."""
    for name in names:
        for seed in range(N_FASHION_ENCODERS):
            REAL[name](seed)


def _images(name: str) -> Path:
    """The folder with one sub-folder for each label."""
    place = KEPT.resolve() / "images" / name
    if not place.exists():
        place.mkdir(parents=True)
        root = unpacked(name, data_dir(), place)
        if name == "omniglot":
            for number, character in enumerate(sorted(root.iterdir())):
                if number % EVERY_CHARACTER:
                    shutil.rmtree(character)
    return place if name == "omniglot" else next(place.iterdir())


def _photographs(name: str) -> BuildConfig:
    return photographs(name, _images(name), data_dir() / WEIGHTS)


def _encoder(config: BuildConfig) -> OnnxEncoder:
    """The encoder of a configuration, built where it is not kept."""
    run = Run(KEPT / f"run-{config.name}")
    if not (run.directory / "built").exists():
        splits = load_splits(config)
        train_step(config, run, splits)
        fit_step(config, run, splits)
        export_step(config, run, splits)
        (run.directory / "built").touch()
    return OnnxEncoder(run.staging / "encoder.onnx")


def _unseen(config: BuildConfig) -> Embedded:
    """All images of the labels that the encoder has not learned from."""
    splits = load_splits(config)
    images = joined(splits.gallery, splits.calibration.matched, splits.evaluation.matched)
    anything = np.ones(len(images), dtype=bool)
    return _embedded(_encoder(config), images, anything, anything)


def _embedded(
    encoder: OnnxEncoder,
    images: LabelledImages,
    kept_out: NDArray[np.bool_],
    indexed: NDArray[np.bool_],
) -> Embedded:
    clean, spoilt = (_encoded(encoder, one) for one in (images, corrupted(images, 0)))
    return Embedded(clean, spoilt, np.array(images.labels), kept_out, indexed)


def _encoded(encoder: OnnxEncoder, images: LabelledImages) -> Embeddings:
    """Embeddings, with features averaged as the outlier detector averages them."""
    parts = []
    for _, batch in images.batches(encoder.metadata.preprocessing, BATCH):
        one = encoder.encode(batch)
        k = -(-one.features.shape[1] // _MOST_FEATURES)
        parts.append(Embeddings(one.mean, one.variance, averaged_features(one.features, k)))
    return Embeddings.concatenate(parts)


def _kept(name: str, embed: Callable[[], Embedded]) -> Embedded:
    """What ``embed`` gives, from the file that an earlier call left."""
    path = KEPT / f"{name}.npz"
    if not path.exists():
        embedded = embed()
        arrays = {
            f"{part}_{field}": getattr(getattr(embedded, part), field)
            for part in ("clean", "spoilt")
            for field in ("mean", "variance", "features")
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            labels=embedded.labels,
            kept_out=embedded.kept_out,
            indexed=embedded.indexed,
            **arrays,
        )
    with np.load(path) as arrays:
        clean, spoilt = (
            Embeddings(*(arrays[f"{part}_{field}"] for field in ("mean", "variance", "features")))
            for part in ("clean", "spoilt")
        )
        return Embedded(clean, spoilt, arrays["labels"], arrays["kept_out"], arrays["indexed"])
