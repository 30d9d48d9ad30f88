"""Average linkage of images on a graph of neighbours.

If the mean log-odds between two groups are at least h, at least one pair of images has log-odds of
at least h. Consider the graph of all pairs with log-odds of at least h. Images that are joined
above h are in the same component of this graph. So SciPy's average linkage is computed separately
for each component, and not for all pairs of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from model_store.identities.pairs import Compared, Floats, Integers, PairModel
from model_store.threads import faiss_threads

N_NEIGHBOURS = 100
"""Number of nearest neighbours. Each image forms a pair with each of these neighbours."""

FLOOR = -3.0
"""Minimum log-odds at which images are joined. Images are never joined at lower log-odds."""

MOST_TOGETHER = 4_000
"""Maximum number of images in a component. If a component is larger, the minimum log-odds of its
pairs are raised in steps of `_STEP`, until the component splits."""

_STEP = 0.5

_EXACT_UP_TO = 20_000
"""Maximum number of images for an exact search of neighbours."""

_N_PROBED = 32

_ROUNDS = 200
"""Maximum number of EM iterations; EM ends earlier if it converges."""

_LEAST_SHARE = 1e-12


def neighbour_pairs(directions: NDArray[np.float32]) -> tuple[Integers, Integers]:
    """Return the pairs of images in which one image is a nearest neighbour of the other image.

    Returns
    -------
    first, second : (P,) indexes of the images of distinct pairs, first < second.
    """
    import faiss  # noqa: PLC0415 - the stubs lack what its Python layer adds

    n, dim = directions.shape
    k = min(N_NEIGHBOURS, n - 1)
    if n < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    unit = np.ascontiguousarray(directions, np.float32)
    if n <= _EXACT_UP_TO:
        index = faiss.IndexFlatIP(dim)
    else:
        index = faiss.index_factory(dim, f"IVF{4 * round(n**0.5)},Flat", faiss.METRIC_INNER_PRODUCT)
        index.nprobe = _N_PROBED
        with faiss_threads(1):  # with several threads, the order of sums would change the index
            index.train(unit)
    index.add(unit)
    _, found = index.search(unit, k + 1)
    rows = np.repeat(np.arange(n), k + 1)
    others = found.ravel().astype(np.int64)
    known = (others >= 0) & (others != rows)
    low, high = np.minimum(rows, others)[known], np.maximum(rows, others)[known]
    pairs = np.unique(low * n + high)
    return pairs // n, pairs % n


def share_of_same(ratios: Floats, n_images: int) -> float:
    """Estimate, by EM, the share of all pairs of images that show the same identity.

    P(same) depends on the assumed share. The estimate is the assumed share that is equal to the
    mean of P(same) (Saerens et al. 2002). Pairs of images that are not neighbours count as
    different.

    Parameters
    ----------
    ratios : (P,) log-likelihood ratios of neighbour pairs.
    """
    n_pairs = n_images * (n_images - 1) / 2
    share = min(0.5, max(len(ratios) / n_pairs / 2, _LEAST_SHARE))
    for _ in range(_ROUNDS):
        before = share
        share = max(float(expit(ratios + logit(share)).sum()) / n_pairs, _LEAST_SHARE)
        share = min(share, 1 - _LEAST_SHARE)
        if abs(share - before) < 1e-6 * before:
            break
    return share


@dataclass(frozen=True, slots=True)
class Joined:
    """The images of one component, and the linkage of these images.

    Attributes
    ----------
    rows : (m,) indexes of the images.
    merges : (m − 1, 4) SciPy's linkage matrix. The distance in a row is ``shift`` − log-odds.
    shift : constant that makes all distances at least 0.
    log_odds : (m (m − 1) / 2,) log-odds of each pair, in SciPy's order.
    """

    rows: Integers
    merges: Floats
    shift: float
    log_odds: Floats

    def heights(self) -> Floats:
        """Return the log-odds (m (m − 1) / 2,) at which each pair is joined, in SciPy's order."""
        from scipy.cluster.hierarchy import cophenet  # noqa: PLC0415 - slow

        heights: Floats = self.shift - cophenet(self.merges)
        return heights

    def cut(self, height: float) -> Iterator[Integers]:
        """Yield the groups that are joined at or above ``height``, as indexes of ``rows``."""
        from scipy.cluster.hierarchy import fcluster  # noqa: PLC0415 - slow

        numbers = fcluster(self.merges, self.shift - height, "distance")
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order])) + 1
        for places in np.split(order, starts):
            if len(places) > 1:
                yield places.astype(np.int64)


def joined(compared: Compared, model: PairModel) -> tuple[list[Joined], float]:
    """Join images; return the components with at least two images, and `share_of_same`."""
    first, second = neighbour_pairs(compared.points.directions)
    ratios = model(compared.signals(first, second))
    share = share_of_same(ratios, len(compared))
    log_odds = ratios + float(logit(share))
    parts = _components(first, second, log_odds, np.arange(len(compared)), FLOOR)
    return [_linked(compared, model, float(logit(share)), rows) for rows in parts], share


def _components(
    first: Integers, second: Integers, log_odds: Floats, rows: Integers, floor: float
) -> Iterator[Integers]:
    """Yield the components of the images ``rows``, with at most `MOST_TOGETHER` images each."""
    from scipy.sparse import coo_array  # noqa: PLC0415 - slow
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - slow

    kept = log_odds >= floor
    first, second, log_odds = first[kept], second[kept], log_odds[kept]
    n = len(rows)
    places = np.searchsorted(rows, first), np.searchsorted(rows, second)
    graph = coo_array((np.ones(len(first), np.int8), places), shape=(n, n))
    _, numbers = connected_components(graph, directed=False)
    order = np.argsort(numbers, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        if 1 < len(part) <= MOST_TOGETHER:
            yield rows[part]
        elif len(part) > MOST_TOGETHER:
            of_part = np.isin(first, rows[part])
            inside = first[of_part], second[of_part], log_odds[of_part]
            yield from _components(*inside, rows[part], floor + _STEP)


def _linked(compared: Compared, model: PairModel, prior: float, rows: Integers) -> Joined:
    from scipy.cluster.hierarchy import linkage  # noqa: PLC0415 - slow

    some = compared.at(rows)
    first, second = np.triu_indices(len(rows), 1)
    log_odds = model(some.signals(first, second)) + prior
    shift = max(float(log_odds.max()), 0.0)
    return Joined(rows, linkage(shift - log_odds, "average"), shift, log_odds)
