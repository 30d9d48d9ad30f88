"""Makes the manifest of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_store.bundles.manifest import Manifest, SampleQuery
from model_store.decision import Calibration
from model_store.decision.staleness import search_settings
from model_store.installation import DISTRIBUTION, installed_versions
from model_store.retriever import Retriever

_LIBRARIES = (DISTRIBUTION, "torch", "torchvision", "onnx", "numpy", "scikit-learn", "faiss-cpu")


def describe(
    retriever: Retriever,
    index: Mapping[str, Any],
    name: str,
    description: str,
    metrics: Mapping[str, Any] | None = None,
    samples: tuple[SampleQuery, ...] = (),
) -> Manifest:
    """Return a manifest that describes the parts of ``retriever``, but lists no files."""
    encoder, calibration = retriever.encoder, retriever.calibration
    return Manifest(
        gallery={
            "name": name,
            "description": description,
            "n_items": retriever.gallery.n_items,
            "search": search_settings(retriever.gallery),
            "index": dict(index),
        },
        encoder={
            "fingerprint": encoder.fingerprint,
            **encoder.metadata.fields(),
            "dim": encoder.dim,
            "n_features": encoder.n_features,
            **text_described(retriever),
        },
        calibration=None if calibration is None else summarise(calibration),
        metrics=metrics,
        samples=samples,
        library_versions=installed_versions(_LIBRARIES),
    )


def text_described(retriever: Retriever) -> dict[str, Any]:
    """Return ``{"text": description}`` of the text encoder; empty if there is none."""
    text, calibration = retriever.text, retriever.for_kind("text").calibration
    if text is None:
        return {}
    return {
        "text": {
            "fingerprint": text.fingerprint,
            "posterior": text.metadata.posterior,
            "context_length": text.context_length,
            "calibration": None if calibration is None else summarise(calibration),
        }
    }


def summarise(calibration: Calibration) -> dict[str, Any]:
    """Return the summary of a calibration for the manifest."""
    return {
        "n_queries": calibration.n_queries,
        "alpha": calibration.alpha,
        "max_error": calibration.max_error,
        "max_false_match_rate": calibration.max_false_match_rate,
        "delta": calibration.delta,
        "expected_absent": calibration.expected_absent,
        "order": calibration.order,
        "report": dict(calibration.report),
    }
