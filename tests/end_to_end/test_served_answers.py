"""The same image through HTTP, through Python and through torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.configuration.build import BuildConfig
from index_builder.datasets import load_splits
from index_builder.pipeline.run import Run
from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.encoder.contract import Embeddings, EncoderMetadata
from model_store.images import decode_image
from model_store.retriever import Retriever
from tests.end_to_end.processes import Service

TOLERANCE = 1e-5
LIMIT = 10


class TorchEncoder:
    """The trained network and its posterior, never exported."""

    def __init__(self, config: BuildConfig, run: Run, served: Bundle) -> None:
        from index_builder.networks import load_encoder
        from index_builder.posteriors.stored import ProbabilisticEncoder, load_posterior

        encoder = load_encoder(config.network, run.checkpoint)
        self._encoder = ProbabilisticEncoder(encoder, load_posterior(run.posterior)).eval()
        self.metadata: EncoderMetadata = served.retriever.encoder.metadata
        self.provider = "torch"
        self.placement = None
        self.dim = served.retriever.encoder.dim
        self.n_features = served.retriever.encoder.n_features
        # Of the exported file: it decides which noise the predictive samples are made of.
        self.fingerprint = served.retriever.encoder.fingerprint

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        import torch

        with torch.inference_mode():
            mean, variance, features = self._encoder(torch.tensor(images))
        return Embeddings(mean.numpy(), variance.numpy(), features.numpy())

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def torch_encoder(digits_config: BuildConfig, digits_run: Path, library: Bundle) -> TorchEncoder:
    return TorchEncoder(digits_config, Run(digits_run), library)


@pytest.fixture(scope="module")
def answers(service: Service, samples: list[bytes]) -> list[dict[str, Any]]:
    return [service.answer(image, limit=LIMIT) for image in samples]


def assert_agrees(served: dict[str, Any], answer: Answer) -> None:
    """Ids are the same, numbers to 1e-5; variances, which have no scale, relative to themselves."""
    decision = answer.decision
    assert served["verdict"] == decision.verdict
    assert decision.match_probabilities is not None
    uncertainty, ood = served["query"]["uncertainty"], served["query"]["ood"]
    assert [uncertainty["value"], uncertainty["percentile"], ood["p_value"]] == pytest.approx(
        [
            answer.uncertainty,
            decision.assessment.percentile,
            decision.assessment.outlier_p_value,
        ],
        abs=TOLERANCE,
    )
    assert uncertainty["level"] == decision.assessment.level
    assert [result["id"] for result in served["results"]] == [m.id for m in answer.matches]
    assert [result["label"] for result in served["results"]] == [
        match.label for match in answer.matches
    ]
    for name in ("similarity", "match_probability", "rank_stability"):
        assert column(served, name) == pytest.approx(
            [getattr(match, name) for match in answer.matches], abs=TOLERANCE
        ), name
    assert column(served, "variance") == pytest.approx(
        [match.variance for match in answer.matches], rel=TOLERANCE
    )


def column(served: dict[str, Any], name: str) -> list[float]:
    return [result[name] for result in served["results"]]


def test_the_library_agrees(
    answers: list[dict[str, Any]], library: Bundle, samples: list[bytes]
) -> None:
    for served, image in zip(answers, samples, strict=True):
        assert_agrees(served, library.retriever.search(image, LIMIT))


def test_the_trained_network_agrees(
    answers: list[dict[str, Any]],
    torch_encoder: TorchEncoder,
    library: Bundle,
    samples: list[bytes],
) -> None:
    retriever = library.retriever
    through_torch = Retriever(torch_encoder, retriever.gallery, retriever.calibration)
    for served, image in zip(answers, samples, strict=True):
        assert_agrees(served, through_torch.search(image, LIMIT))


def test_a_plain_search_of_the_gallerys_images_agrees(
    answers: list[dict[str, Any]],
    torch_encoder: TorchEncoder,
    digits_config: BuildConfig,
    samples: list[bytes],
) -> None:
    """From the original images, in float64: every distance, and a sort."""
    gallery = load_splits(digits_config).gallery
    preprocessing = torch_encoder.metadata.preprocessing
    items = torch_encoder.encode(gallery.prepared(preprocessing))
    queries = torch_encoder.encode(
        np.stack([preprocessing(decode_image(image).pixels) for image in samples])
    )
    similarities = unit(queries.mean) @ unit(items.mean).T
    spread = items.variance.sum(1, dtype=np.float64) / square_norm(items.mean)
    n_clear = 0
    for served, row in zip(answers, similarities, strict=True):
        order = np.argsort(-row)[: LIMIT + 1]
        best = order[:LIMIT]
        assert column(served, "similarity") == pytest.approx(row[best], abs=TOLERANCE)
        if no_near_ties(row[order]):
            n_clear += 1
            assert [result["id"] for result in served["results"]] == [gallery.ids[i] for i in best]
            assert column(served, "variance") == pytest.approx(spread[best], rel=TOLERANCE)
    assert n_clear > len(samples) / 2


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    normalised: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return normalised


def square_norm(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = (vectors.astype(np.float64) ** 2).sum(1)
    return squares


def no_near_ties(descending: Sequence[float]) -> bool:
    return min(left - right for left, right in pairwise(descending)) > TOLERANCE
