"""The prior precision judged by what predictive samples are used for: voting on neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from index_builder.posteriors.laplace.validation import Criterion
from index_builder.posteriors.stored import Posterior

N_SAMPLES = 50

N_NEAREST, N_OTHERS = 100, 400
"""Candidates of a query: its nearest items, and a random share of all. Among the nearest alone,
which in a gallery with hundreds of images of each label are nearly all of one, noise votes as well
as the right posterior, and the widest one that is tried is chosen."""

_CHUNK = 50
"""Queries at a time: 50 × 50 samples × 500 candidates fit into memory whatever D."""


def vote_log_likelihood(
    posterior: Posterior,
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    generator: torch.Generator,
) -> Criterion:
    """Mean log-probability that sampled nearest neighbours give to a query's own label.

    Each predictive sample of a query votes for the label of its nearest candidate; the share of
    votes is the probability of the label (with one vote added to either side, Laplace's rule). A
    proper scoring rule, so that it is best where the samples are as spread as the errors are
    frequent: a posterior too wide votes at random, one too narrow is unanimously wrong. Area under
    a ROC curve cannot tell, since it does not see the scale.

    Parameters
    ----------
    posterior : only its mean is used, to find the candidates.
    queries : (Q, F) features of images that trained nothing.
    query_labels : (Q,) int64.
    gallery : (M, F) features of gallery images.
    gallery_labels : (M,) int64.
    generator : draws the noise, the same for every posterior that is judged.
    """
    directions = torch.nn.functional.normalize(posterior.predict(gallery)[0])
    nearest = posterior.predict(queries)[0] @ directions.T
    candidates = nearest.topk(min(N_NEAREST, len(gallery))).indices
    others = torch.randperm(len(gallery), generator=generator)[:N_OTHERS]
    candidates = torch.cat([candidates, others.expand(len(queries), -1)], 1)
    is_right = gallery_labels[candidates] == query_labels[:, None]
    noise = torch.randn(N_SAMPLES, directions.shape[1], generator=generator)

    def criterion(candidate: Posterior) -> float:
        mean, variance = candidate.predict(queries)
        total = 0.0
        for start in range(0, len(queries), _CHUNK):
            rows = slice(start, start + _CHUNK)
            # Normalising a sample does not change which candidate it is nearest to.
            samples = mean[rows, None] + variance[rows, None].sqrt() * noise
            votes = (samples @ directions[candidates[rows]].mT).argmax(-1)
            right = is_right[rows].gather(1, votes).sum(1)
            total += float(((right + 1) / (N_SAMPLES + 2)).log().sum())
        return total / len(queries)

    return criterion
