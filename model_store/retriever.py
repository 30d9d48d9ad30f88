"""From the bytes of an image to an answer: the library's way in, and the service's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.bundle import (
    ENCODER_FILE,
    Manifest,
    locate,
    read_manifest,
)
from model_store.decision import Calibration, Decision, decide
from model_store.encoder import Encoder, OnnxEncoder, ProviderChoice
from model_store.errors import BundleMismatch
from model_store.gallery import FaissGallery, Gallery, Item
from model_store.images import DecodedImage, decode_image
from model_store.predictive import N_SAMPLES, Predictive, predict
from model_store.search import two_stage_search
from model_store.sphere import base_noise

DEFAULT_ALPHA = 0.05
"""Rate of false alarms where neither the request nor a calibration names one."""


@dataclass(frozen=True, slots=True)
class Match:
    """One ranked neighbour.

    Attributes
    ----------
    rank : from 1.
    item : whom the gallery's owner knows.
    similarity : cosine of the directions, in [−1, 1].
    match_probability : calibrated P(true match), None without calibration.
    rank_stability : share of predictive samples under which it stays in the list.
    variance : of the item's own embedding, relative to its squared norm.
    """

    rank: int
    item: Item
    similarity: float
    match_probability: float | None
    rank_stability: float
    variance: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What Vouch says of one query."""

    decision: Decision
    predictive: Predictive
    alpha: float
    matches: tuple[Match, ...]
    seconds: dict[str, float]


class Retriever:
    """An encoder, a gallery and a decision layer that belong together.

    Parameters
    ----------
    calibration : None where nothing is calibrated; probabilities are then None as well.

    Raises
    ------
    BundleMismatch : gallery or calibration were made with another encoder.
    """

    def __init__(self, encoder: Encoder, gallery: Gallery, calibration: Calibration | None) -> None:
        made_with = {"gallery": gallery.encoder_fingerprint}
        if calibration is not None:
            made_with["calibration"] = calibration.encoder_fingerprint
        for part, fingerprint in made_with.items():
            if fingerprint != encoder.fingerprint:
                raise BundleMismatch(
                    f"The {part} was made with encoder {fingerprint[:12]}, the encoder here is "
                    f"{encoder.fingerprint[:12]}. Run `vouch-build index` and "
                    "`vouch-build calibrate` with this encoder."
                )
        self.encoder = encoder
        self.gallery = gallery
        self.calibration = calibration
        self._noise = base_noise(encoder.fingerprint, N_SAMPLES, encoder.dim)

    @property
    def alpha(self) -> float:
        """The rate of false alarms that is used where a request names none."""
        return DEFAULT_ALPHA if self.calibration is None else self.calibration.alpha

    def embed(self, images: NDArray[np.uint8]) -> list[Predictive]:
        """Predictive distributions of ``images`` (B, H, W, 3), at the encoder's input size."""
        embeddings = self.encoder.encode(images)
        if self.calibration is None:
            distances = np.full(len(embeddings), np.nan)
        else:
            distances = self.calibration.detector.distances(embeddings.features)
        return predict(embeddings, distances, self._noise)

    def prepare(self, image: DecodedImage) -> NDArray[np.uint8]:
        """Bring a decoded image to the encoder's input size, (H, W, 3)."""
        return self.encoder.metadata.preprocessing(image.pixels)

    def find(self, predictive: Predictive, limit: int, alpha: float | None = None) -> Answer:
        """Search and decide for one query."""
        alpha = self.alpha if alpha is None else alpha
        started = time.perf_counter()
        neighbours = two_stage_search(self.gallery, predictive.direction, predictive.samples, limit)
        searched = time.perf_counter()
        decision = decide(
            self.calibration,
            predictive,
            neighbours,
            self.gallery.label_codes(neighbours.rows),
            limit,
            alpha,
        )
        decided = time.perf_counter()
        shown = neighbours.rows[:limit]
        matches = _matches(
            self.gallery.items(shown),
            neighbours.similarities,
            decision.match_probabilities,
            neighbours.rank_stability,
            self.gallery.dispersions(shown),
        )
        seconds = {
            "search": searched - started,
            "decide": decided - searched,
            "items": time.perf_counter() - decided,
        }
        return Answer(decision, predictive, alpha, matches, seconds)

    def search(self, data: bytes, limit: int = 10, alpha: float | None = None) -> Answer:
        """Answer for the bytes of an image file.

        Raises
        ------
        ImageError : the bytes cannot be searched with.
        """
        prepared = self.prepare(decode_image(data))
        return self.find(self.embed(prepared[None])[0], limit, alpha)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle."""

    directory: Path
    manifest: Manifest
    retriever: Retriever

    @property
    def name(self) -> str:
        """Name of the gallery."""
        return str(self.manifest.gallery["name"])


def open_parts(directory: Path, provider: ProviderChoice = "auto", threads: int = 0) -> Retriever:
    """Put together the encoder, gallery and calibration that lie in ``directory``."""
    return Retriever(
        OnnxEncoder(directory / ENCODER_FILE, provider, threads),
        FaissGallery(directory),
        Calibration.load(directory),
    )


def open_bundle(path: Path, provider: ProviderChoice = "auto", threads: int = 0) -> Bundle:
    """Verify and open the bundle at ``path``, or the current one of a directory of bundles.

    Raises
    ------
    BundleError : missing, changed, or of parts that do not belong together.
    EncoderError : the encoder cannot be run here.
    """
    directory = locate(path)
    manifest = read_manifest(directory)
    retriever = open_parts(directory, provider, threads)
    if manifest.encoder["fingerprint"] != retriever.encoder.fingerprint:
        raise BundleMismatch(
            f"The manifest of {directory.name} names encoder "
            f"{str(manifest.encoder['fingerprint'])[:12]}, the file is "
            f"{retriever.encoder.fingerprint[:12]}. Build the bundle again."
        )
    return Bundle(directory, manifest, retriever)


def _matches(
    items: Sequence[Item],
    similarities: NDArray[np.float64],
    probabilities: NDArray[np.float64] | None,
    stability: NDArray[np.float64],
    variances: NDArray[np.float32],
) -> tuple[Match, ...]:
    return tuple(
        Match(
            rank + 1,
            item,
            float(similarities[rank]),
            None if probabilities is None else float(probabilities[rank]),
            float(stability[rank]),
            float(variances[rank]),
        )
        for rank, item in enumerate(items)
    )
