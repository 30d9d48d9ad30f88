"""Embeddings, for those who have a store of their own."""

from __future__ import annotations

import math

from service import schemas
from service.answers.bundles import bundle_state, encoder_state
from service.answers.searching import query
from service.engine import SearchEngine
from service.outcomes import Embedded


def embedding_answer(
    engine: SearchEngine, embedded: Embedded, request_id: str
) -> schemas.EmbeddingAnswer:
    """One image's embedding."""
    bundle, predictive = engine.bundle, embedded.predictive
    score = predictive.outlier_score
    return schemas.EmbeddingAnswer(
        request_id=request_id,
        gallery=bundle.name,
        query=query(bundle, embedded, predictive, embedded.assessment, embedded.alpha),
        direction=predictive.direction.tolist(),
        variance=predictive.variance.tolist(),
        concentration=predictive.concentration,
        spherical_variance=predictive.spherical_variance,
        outlier_score=None if math.isnan(score) else score,
        encoder=encoder_state(bundle),
        bundle=bundle_state(engine),
    )
