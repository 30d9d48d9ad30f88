"""What cached numbers depend on, beside the bytes of an image."""

from __future__ import annotations

import hashlib

from model_store.predictive import N_SAMPLES
from model_store.retriever import Retriever

KEY_VERSION = 7
"""Of the layout of cache entries, and of how their numbers are computed; another is another key."""


def key_prefix(retriever: Retriever) -> str:
    """Of the keys of one encoder and one outlier detector.

    A gallery may change, and be compacted: what is known of an image stays.
    """
    digest = hashlib.sha256(retriever.encoder.fingerprint.encode())
    if retriever.calibration is not None:
        digest.update(retriever.calibration.outlier_fingerprint().encode())
    return f"vouch:{KEY_VERSION}:{digest.hexdigest()[:32]}:{N_SAMPLES}"
