"""Synthetic worlds: clusters on the sphere, whose labels, objects and noise are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import from_arrays
from index_builder.datasets.splits import QuerySet, stratified
from model_store.encoder.contract import Embeddings, Encoder
from model_store.gallery import Gallery
from model_store.gallery.files.gallery import write_faiss_gallery
from model_store.gallery.opening import open_gallery
from model_store.gallery.protocol import NewItem, Thumbnail

from .latents import TableEncoder, pictures

DIM, EXTRA_DIM, N_FEATURES = 12, 12, 64
"""Of embeddings; of what features know beside them; of features."""

TESTED = 10
"""Matched test queries for each calibration query, at least.

Gallery images that are calibration queries count too. A measured coverage then has a variance of
about 1.1 times that of the true coverage: at δ = 0.1, chance of the test adds about 0.01 to the
share of calibrations that miss it."""

_EXTRA = 0.4
"""Distance of labels from the origin in what features alone know, where in embeddings it is 1."""

_ALIKE = 0.1
"""Distance between the centres of two labels that look alike."""

_FEATURE_NOISE = 0.2
_SPOILT = 1.5
_NO_PICTURE = Thumbnail(b"", "image/png")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What a synthetic world is like.

    Attributes
    ----------
    name : for the report.
    n_labels, per_label : of the gallery, where ``sizes`` is balanced.
    sizes : images of each label: as many of each, by Zipf's law, or few labels of 20 images beside
        many of one (``rare``) or of one and of three (``mixed``).
    n_calibration : matched calibration queries.
    n_withheld : calibration queries of withheld labels; none where stand-ins have to do.
    per_withheld : of each withheld label.
    label_noise : share of wrong labels in gallery and calibration; those of test queries are right.
    group_size : photographs of each object.
    unseen : whether images of the gallery may be calibration queries too.
    spread, object_spread, noise : deviation of images from their label (or object), of objects from
        their label, and of what the encoder sees of an image, beside labels at distance 1 from the
        origin.
    noise_spread : standard deviation of the logarithm of an image's noise.
    n_test : absent test queries, of labels of their own, and matched ones at least.
    look_alikes : share of all labels, absent ones too, that look like another label of the gallery.
    """

    name: str
    n_labels: int = 40
    per_label: int = 20
    sizes: Literal["balanced", "zipf", "rare", "mixed"] = "balanced"
    n_calibration: int = 300
    n_withheld: int = 0
    per_withheld: int = 5
    label_noise: float = 0.0
    group_size: int = 1
    unseen: bool = False
    spread: float = 0.65
    object_spread: float = 0.6
    noise: float = 0.35
    noise_spread: float = 0.5
    n_test: int = 1500
    look_alikes: float = 0.0

    def label_sizes(self) -> Integers:
        """Images of each label in the gallery."""
        if self.sizes == "rare":
            return np.repeat([20, 1], [20, 150])
        if self.sizes == "mixed":
            return np.repeat([20, 3, 1], [20, 60, 100])
        if self.sizes == "zipf":
            shares = 1 / np.arange(1, self.n_labels + 1)
            total = self.n_labels * self.per_label
            rounded: Integers = (total * shares / shares.sum()).round().astype(np.int64)
            return np.maximum(rounded, 2)
        return np.full(self.n_labels, self.per_label)


@dataclass(frozen=True, slots=True)
class World:
    """A gallery, what to calibrate it with, and queries whose truth is known.

    Attributes
    ----------
    encoder, gallery : what is asked.
    gallery_images : for `calibrate_gallery`.
    calibration : for `calibrate_gallery`; nothing of the test queries, nor of their objects, is in
        it, and no label of `absent`.
    matched, absent : test queries; labels of the matched ones are the true ones.
    label_sizes : images of each label in the gallery.
    unseen : whether images of the gallery may be calibration queries too.
    """

    name: str
    encoder: Encoder
    gallery: Gallery
    gallery_images: LabelledImages
    calibration: QuerySet
    matched: LabelledImages
    absent: LabelledImages
    label_sizes: Mapping[str, int]
    unseen: bool


@dataclass(slots=True)
class _Latents:
    """Pictures drawn so far, and what the encoder says of them."""

    spec: WorldSpec
    generator: np.random.Generator
    mixing: Floats
    parts: list[Embeddings] = field(default_factory=list)
    n: int = 0

    def draw(self, centres: Floats) -> Integers:
        """Photograph what lies at ``centres`` (n, D + E); returns the numbers (n,)."""
        spec, draw = self.spec, self.generator.standard_normal
        scale = DIM**-0.5
        latent = centres + spec.spread * scale * draw(centres.shape)
        # How hard an image is to see says nothing of what it shows; the encoder knows how hard.
        noise = spec.noise * np.exp(spec.noise_spread * draw(len(centres)))
        seen = latent + noise[:, None] * scale * draw(latent.shape)
        mean = seen[:, :DIM]
        variance = np.repeat((noise**2 / DIM)[:, None], DIM, axis=1)
        features = seen @ self.mixing + _FEATURE_NOISE * scale * draw((len(seen), N_FEATURES))
        self.parts.append(Embeddings(*(x.astype(np.float32) for x in (mean, variance, features))))
        self.n += len(centres)
        return np.arange(self.n - len(centres), self.n)


def make_world(spec: WorldSpec, seed: int, directory: Path) -> World:
    """Draw a world, and put its gallery into ``directory``; the same one for the same seed.

    Centres of labels come from one prior, those of absent ones as well. Matched calibration and
    test queries show labels as often as the gallery does (in groups: new objects of its labels).
    """
    generator = np.random.default_rng([seed, 1])
    mixing = generator.standard_normal((DIM + EXTRA_DIM, N_FEATURES)) / N_FEATURES**0.5
    latents = _Latents(spec, generator, mixing)
    sizes = spec.label_sizes()
    names = [f"label-{code:03d}" for code in range(len(sizes))]
    centres = _centres(len(sizes), generator)
    n_pairs = round(spec.look_alikes * len(sizes) / 2)
    centres[:n_pairs] = _alike(centres[n_pairs : 2 * n_pairs], generator)

    shown = np.repeat(np.arange(len(sizes)), sizes)
    if spec.group_size > 1:
        n_held_out = -(-spec.n_calibration // len(sizes))
        shown = np.repeat(np.arange(len(sizes)), sizes + n_held_out)
    collected, groups = _photographed(latents, centres, shown)
    stated = _stated(shown, len(sizes), spec.label_noise, generator)
    queries = _labels_asked(spec, sizes, generator)
    calibration, _ = _photographed(latents, centres, queries)
    of_calibration = _stated(queries, len(sizes), spec.label_noise, generator)
    # So many that what is missed is missed by the calibration, and seldom by chance of the test.
    # Gallery images whose label has another image are calibration queries of an ``unseen`` world.
    n_of_gallery = int(sizes[sizes > 1].sum()) if spec.unseen else 0
    n_matched = max(spec.n_test, TESTED * (spec.n_calibration + n_of_gallery))
    tested = _labels_asked(spec, sizes, generator, n_matched)
    matched, _ = _photographed(latents, centres, tested)
    # Many absent labels, few images of each: the truth is the average over the prior.
    withheld = _absent(latents, generator, spec.n_withheld, spec.per_withheld, centres)
    absent = _absent(latents, generator, spec.n_test, 2, centres)

    clean = Embeddings.concatenate(latents.parts)
    encoder = TableEncoder(clean, _spoilt(clean, generator))
    pool = pictures(np.arange(latents.n))

    def images(prefix: str, numbers: Integers, labels: Sequence[str]) -> LabelledImages:
        return from_arrays(prefix, pool[numbers], labels)

    gallery_images = images("item", collected, [names[code] for code in stated])
    if spec.group_size > 1:  # the product's own way to hold out, which has to mind the groups
        share = float(sizes.sum() / len(shown))
        gallery_images, of_matched = stratified(_grouped(gallery_images, groups), share, generator)
    else:
        of_matched = images("calibration", calibration, [names[code] for code in of_calibration])
    gallery_images = gallery_images.at(generator.permutation(len(gallery_images)))
    of_withheld = images("withheld", withheld, _names("withheld", len(withheld), spec.per_withheld))
    gallery = write_gallery(directory, encoder, gallery_images, seed)
    return World(
        spec.name,
        encoder,
        gallery,
        gallery_images,
        QuerySet(of_matched, of_withheld, None),
        images("matched", matched, [names[code] for code in tested]),
        images("absent", absent, _names("absent", len(absent), 2)),
        {name: gallery_images.labels.count(name) for name in names},
        spec.unseen,
    )


def _spoilt(clean: Embeddings, generator: np.random.Generator) -> Embeddings:
    """Return what is said of the same pictures when they are spoilt.

    Each lies `_SPOILT` of its length away from itself, with twice the standard deviation: the
    encoder knows a part of what it does not know.
    """

    def missed(values: NDArray[np.float32]) -> NDArray[np.float32]:
        lengths = np.linalg.norm(values, axis=1, keepdims=True) / values.shape[1] ** 0.5
        noise = generator.standard_normal(values.shape)
        spoilt: NDArray[np.float32] = (values + _SPOILT * lengths * noise).astype(np.float32)
        return spoilt

    return Embeddings(missed(clean.mean), 4 * clean.variance, missed(clean.features))


def write_gallery(directory: Path, encoder: Encoder, images: LabelledImages, seed: int) -> Gallery:
    """Write and open an exact gallery of ``images``, whose items have numbers to filter by.

    ``shelf`` is one number in [0, 1) for all items of a label, ``slot`` one for each item.
    """
    generator = np.random.default_rng([seed, 2])
    shelves = dict(zip(sorted(set(images.labels)), generator.random(len(images)), strict=False))
    slots = generator.random(len(images))
    batches = images.batches(encoder.metadata.preprocessing, 512)
    embeddings = Embeddings.concatenate([encoder.encode(batch) for _, batch in batches])
    items = [
        NewItem(name, label, {"shelf": shelves[label], "slot": float(slot)}, _NO_PICTURE)
        for name, label, slot in zip(images.ids, images.labels, slots, strict=True)
    ]
    write_faiss_gallery(directory, embeddings, items, encoder.fingerprint)
    return open_gallery(directory)


def _centres(n: int, generator: np.random.Generator) -> Floats:
    """Centres (n, D + E) of labels: uniform on the sphere of embeddings, and of what is beside."""
    own, beside = (generator.standard_normal((n, dim)) for dim in (DIM, EXTRA_DIM))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    beside *= _EXTRA / np.linalg.norm(beside, axis=1, keepdims=True)
    return np.hstack([own, beside])


def _photographed(latents: _Latents, centres: Floats, codes: Integers) -> tuple[Integers, Integers]:
    """Numbers and objects (n,) of images of labels ``codes`` (n,), which stand together."""
    spec = latents.spec
    if spec.group_size == 1:
        return latents.draw(centres[codes]), np.arange(len(codes))
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    place = np.arange(len(codes)) - np.repeat(starts, np.diff(np.r_[starts, len(codes)]))
    begins = place % spec.group_size == 0
    groups = np.cumsum(begins) - 1
    away = latents.generator.standard_normal((begins.sum(), centres.shape[1]))
    objects = centres[codes[begins]] + spec.object_spread * DIM**-0.5 * away
    return latents.draw(objects[groups]), groups


def _alike(centres: Floats, generator: np.random.Generator) -> Floats:
    """Return centres (n, D + E) of labels that look like those at ``centres``."""
    away: Floats = _ALIKE * DIM**-0.5 * generator.standard_normal(centres.shape)
    return centres + away


def _absent(
    latents: _Latents,
    generator: np.random.Generator,
    n: int,
    per_label: int,
    of_gallery: Floats,
) -> Integers:
    """Images (n,) of labels that are nowhere else, so many of each, all of different objects."""
    centres = _centres(-(-n // per_label), generator) if n else np.empty((0, DIM + EXTRA_DIM))
    n_alike = round(latents.spec.look_alikes * len(centres))
    if n_alike:
        others = generator.integers(len(of_gallery), size=n_alike)
        centres[:n_alike] = _alike(of_gallery[others], generator)
    codes = np.repeat(np.arange(len(centres)), per_label)[:n]
    if latents.spec.group_size > 1:
        away = generator.standard_normal((n, centres.shape[1]))
        return latents.draw(centres[codes] + latents.spec.object_spread * DIM**-0.5 * away)
    return latents.draw(centres[codes])


def _names(prefix: str, n: int, per_label: int) -> list[str]:
    return [f"{prefix}-{row // per_label:04d}" for row in range(n)]


def _stated(
    codes: Integers, n_labels: int, noise: float, generator: np.random.Generator
) -> Integers:
    """Labels as somebody wrote them down."""
    wrong = generator.random(len(codes)) < noise
    return np.where(wrong, generator.integers(n_labels, size=len(codes)), codes)


def _labels_asked(
    spec: WorldSpec, sizes: Integers, generator: np.random.Generator, n: int | None = None
) -> Integers:
    """Labels of ``n`` test queries, or of the calibration queries where it is not given.

    As often as in the gallery. The builder holds out a fifth of a label's images, to the nearest
    whole number: labels of one or two images have no calibration queries.
    """
    shares = sizes.astype(float)
    if n is None:
        shares[(0.8 * sizes).round() == sizes] = 0
    codes = generator.choice(
        len(sizes), spec.n_calibration if n is None else n, p=shares / shares.sum()
    )
    return np.sort(codes)


def _grouped(images: LabelledImages, groups: Integers) -> LabelledImages:
    """The images with what they show together."""
    return replace(images, groups=tuple(map(str, groups.tolist())))
