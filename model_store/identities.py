"""Grouping queries into probable identities, with a calibrated P(same).

The fit uses held-out labels. The labels are divided into two halves. The images of each half are
queries, which are compared with the other half. The fit uses several random divisions. First, a
model of the evidence of a pair is fitted. Then P(same) is fitted, by isotonic regression, as a
function of the log-likelihood ratio at which average linkage joins a pair. P(same) is the
probability that two images show the same identity. Each set of images has another share of pairs
that show the same identity, so the odds are corrected for the share (Saerens et al. 2002). P(same)
is shown to users, and determines where the linkage tree is cut into groups.

If the mean log-odds between two groups are at least h, at least one pair of images has log-odds of
at least h. Consider the graph of all pairs with log-odds of at least h. Images that are joined
above h are in the same component of this graph. So SciPy's average linkage is computed separately
for each component, and not for all pairs of images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from model_store.bundles.kept_queries import BUILD_QUERIES_FILE, CalibrationInputs
from model_store.errors import IdentitiesUnavailable
from model_store.gallery import Gallery
from model_store.gallery.index.build import faiss_threads
from model_store.identity_pairs import (
    Bools,
    Codes,
    Compared,
    Floats,
    Integers,
    Labelled,
    PairModel,
    Points,
)

if TYPE_CHECKING:
    from model_store.bundles.bundle import Bundle

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


UNKNOWN = ("no_match", "out_of_distribution")
"""Verdicts of queries without a match."""

PRECISION = 0.9
"""Default precision. For all pairs of images within groups, the precision is the expected share of
pairs that show the same identity."""

LEAST_LABELS = 4
"""Minimum number of labels with at least two items: two labels as queries, and two for
comparison."""

MOST_ITEMS = 3_000
"""Maximum number of labelled items in the fit. Half of these items form about a million pairs."""

MOST_OF_LABEL = 30

_DIVISIONS = 6
"""Number of random divisions of the labels into halves. With only two divisions, the probabilities
depend on the random draw, because each division confuses different labels."""

_MOST_DIFFERENT = 100_000
"""Maximum number of pairs of different identities that are drawn from each half. The drawn pairs
are weighted to represent all pairs of different identities."""

_BLOCKS = 50
"""Number of equal blocks of pairs in the fit of P(same). Pairs that two clusters form are joined
together, so that single pairs with the highest ratios are no evidence of a high P(same)."""

_LIKELY = 0.5
"""Minimum P(same) of the pairs that are joined in a group, even if the requested precision is
lower."""


@dataclass(frozen=True, slots=True)
class Group:
    """Images that probably show one identity.

    Attributes
    ----------
    rows : (m,) indexes of the images, at least two.
    probabilities : (m,) for each image, the expected share of the remaining images in the group
        that show the same identity as this image.
    probability : expected share of the group's pairs that show the same identity.
    medoid : the image in ``rows`` with the largest sum of log-odds over the other images.
    """

    rows: Integers
    probabilities: Floats
    probability: float
    medoid: int


@dataclass(frozen=True, slots=True)
class Grouping:
    """A fitted grouping of images with unknown identities.

    Attributes
    ----------
    pairs : model of the evidence of a pair.
    ratios : (K,) log-likelihood ratios at which average linkage joins pairs in the fit, ascending;
        the mean of each block of pairs.
    same : (K,) share of the pairs joined at these ratios that show the same identity, ascending.
    share : share of all pairs in the fit that show the same identity, by `share_of_same`.
    cohort : directions (M, D) of items that queries are compared with.
    n_labels : number of identities in the fit.
    """

    pairs: PairModel
    ratios: Floats
    same: Floats
    share: float
    cohort: Points
    n_labels: int

    @classmethod
    def of_bundle(cls, bundle: Bundle, seed: int = 0) -> Grouping:
        """Fit to labels that the bundle's encoder was not trained on.

        If the last layer was fitted to the gallery's labels, the images of each label are embedded
        by a layer that was fitted without this label; see `CalibrationInputs.unlabelled`. Images of
        withheld labels are used too.

        Raises
        ------
        IdentitiesUnavailable : too few such labels have at least two images.
        """
        directory, gallery = bundle.directory, bundle.retriever.gallery
        kept = CalibrationInputs.load(directory, BUILD_QUERIES_FILE)
        kept = kept or CalibrationInputs.load(directory)
        if kept is None and bundle.retriever.calibration is not None:
            raise IdentitiesUnavailable(
                "An earlier release built the bundle, and did not store which labels the encoder "
                "was trained on. P(same) needs labels that the encoder was not trained on. Build "
                "the bundle again."
            )
        if kept is None or kept.unseen or kept.are_views:
            return cls.of_gallery(gallery, seed)
        kept = kept.relabelled(gallery, {})
        known = _without_training(kept)
        if kept.unlabelled is None and _n_repeated(known.codes) < LEAST_LABELS:
            raise IdentitiesUnavailable(
                "P(same) needs labels that the encoder was surely not trained on: at least "
                f"{LEAST_LABELS}, with two images each. Build again with more `withheld_labels` or "
                "a frozen encoder."
            )
        return cls.fit(known.at(_sample(known.codes, np.random.default_rng(seed))), seed)

    @classmethod
    def of_gallery(cls, gallery: Gallery, seed: int = 0) -> Grouping:
        """Fit to the labels of a gallery; the encoder must not be trained on these labels.

        Raises
        ------
        IdentitiesUnavailable : too few labels have at least two items.
        """
        rows = gallery.page(None, gallery.n_items)
        codes = gallery.label_codes(rows)
        chosen = rows[_sample(codes, np.random.default_rng(seed))]
        points = Points(gallery.directions(chosen), gallery.total_variances(chosen))
        return cls.fit(Labelled(points, gallery.label_codes(chosen)), seed)

    @classmethod
    def fit(cls, known: Labelled, seed: int = 0) -> Grouping:
        """Fit to images whose identity is known.

        Raises
        ------
        IdentitiesUnavailable : too few identities have at least two images.
        """
        from scipy.optimize import isotonic_regression  # noqa: PLC0415 - slow

        generator = np.random.default_rng(seed)
        names, counts = np.unique(known.codes, return_counts=True)
        n_repeated = int((counts > 1).sum())
        if n_repeated < LEAST_LABELS:
            raise IdentitiesUnavailable(
                f"{n_repeated} labels of the gallery have two items or more, but the fit of "
                f"P(same) needs {LEAST_LABELS} such labels. Add items or labels."
            )
        halves = list(_halves(known, names[np.argsort(-counts)], generator))
        examples = [_example_pairs(*half, generator) for half in halves]
        signals, same, weights = (np.concatenate(part) for part in zip(*examples, strict=True))
        pairs = PairModel.fit(signals, same, weights)
        ratios, outcomes, share = _joined_pairs(pairs, halves)
        order = np.argsort(ratios, kind="stable")
        blocks = np.array_split(order, min(_BLOCKS, len(order)))
        at = np.array([ratios[block].mean() for block in blocks])
        shares = isotonic_regression([outcomes[block].mean() for block in blocks]).x
        if shares[0] == shares[-1]:
            raise IdentitiesUnavailable(
                "The encoder does not separate the gallery's labels: similar images are not more "
                "likely to have the same label. Use another encoder."
            )
        return cls(pairs, at, shares, share, known.points, len(names))

    def probability(self, ratios: Floats, share: float) -> Floats:
        """Return P(same) (...) for pairs that are joined at the log-likelihood ``ratios`` (...).

        With n labels in the fit, the result is at most n / (n + 1) (Laplace's rule of succession),
        because the next label might be confused with another label.

        Parameters
        ----------
        share : share of all pairs of these images that show the same identity.
        """
        in_fit = np.interp(ratios, self.ratios, self.same)
        found: Floats = expit(logit(in_fit) + logit(share) - logit(self.share))
        return found * (self.n_labels / (self.n_labels + 1))

    def groups(self, queries: Points, precision: float = PRECISION) -> list[Group]:
        """Group queries without a match; the largest group is first.

        Parameters
        ----------
        precision : for all pairs within groups, the expected share that shows the same identity.
        """
        if len(queries) < 2:
            return []
        compared = Compared.with_cohort(queries, self.cohort.directions)
        components, share = joined(compared, self.pairs)
        cut = self._cut(components, share, precision)
        found = [group for part in components for group in self._of_component(part, share, cut)]
        return sorted(found, key=lambda group: (-len(group.rows), int(group.rows[0])))

    def _cut(self, components: Sequence[Joined], share: float, precision: float) -> float:
        """Return the lowest log-odds at which groups may be joined; ∞ if no log-odds are enough.

        At these log-odds, the mean P(same) of all joined pairs is at least ``precision``.
        """
        if not components:
            return np.inf
        heights = np.sort(np.concatenate([part.heights() for part in components]))[::-1]
        probabilities = self.probability(heights - logit(share), share)
        means = np.cumsum(probabilities) / np.arange(1, len(heights) + 1)
        last = np.append(heights[1:] < heights[:-1], True)  # equal heights stay together
        enough = (means >= precision) & (probabilities >= _LIKELY) & last & (heights >= FLOOR)
        places = np.flatnonzero(enough)
        return float(heights[places[-1]]) if len(places) else np.inf

    def _of_component(self, part: Joined, share: float, cut: float) -> Iterator[Group]:
        if not np.isfinite(cut):
            return
        n = len(part.rows)
        of_pairs = self.probability(part.heights() - logit(share), share)
        probabilities, log_odds = _square(of_pairs, n), _square(part.log_odds, n)
        for places in part.cut(cut - 1e-9):  # includes pairs that are joined exactly at the cut
            inside = np.ix_(places, places)
            of_members = probabilities[inside].sum(axis=1) / (len(places) - 1)
            medoid = places[log_odds[inside].sum(axis=1).argmax()]
            order = np.argsort(part.rows[places])
            yield Group(
                part.rows[places][order],
                of_members[order],
                float(of_members.mean()),
                int(part.rows[medoid]),
            )


def group_id(names: Sequence[str]) -> str:
    """Return the id of a group; the id depends only on the group's queries."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def _without_training(kept: CalibrationInputs) -> Labelled:
    """Return the stored images of labels that their embedding's layer was not fitted to."""
    parts = [(kept.withheld, kept.withheld.mean)]
    if kept.unlabelled is not None:
        parts.append((kept.matched, kept.unlabelled))
    points = [Points.of(mean.whole(), part.variance.whole()) for part, mean in parts]
    labels = [label for part, _ in parts for label in part.labels]
    _, codes = np.unique(np.array(labels, dtype=np.str_), return_inverse=True)
    return Labelled(Points.concatenate(points), codes)


def _n_repeated(codes: Codes) -> int:
    """Return the number of identities with at least two images."""
    return int((np.unique_counts(codes).counts > 1).sum())


def _sample(codes: Codes, generator: np.random.Generator) -> Integers:
    """Return the indexes of the items for the fit: some items of each randomly drawn label."""
    names, counts = np.unique(codes[codes >= 0], return_counts=True)
    wanted = generator.permutation(names[counts > 1])
    order = generator.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    starts = np.searchsorted(codes[order], wanted)
    ends = np.searchsorted(codes[order], wanted, side="right")
    chosen: list[Integers] = []
    n = 0
    for start, end in zip(starts, ends, strict=True):
        part = order[start : min(end, start + MOST_OF_LABEL)]
        if n + len(part) > MOST_ITEMS:
            break
        chosen.append(part)
        n += len(part)
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def _halves(
    known: Labelled, names: Codes, generator: np.random.Generator
) -> Iterator[tuple[Compared, Codes]]:
    """Yield the images of each half, compared with the other half, and their identity codes.

    Parameters
    ----------
    names : codes of the identities; the identity with the most images is first. With this
        order, the two halves have similar sizes.
    """
    for _ in range(_DIVISIONS):
        turns = generator.integers(0, 2, (len(names) + 1) // 2)
        sides = np.stack([turns, 1 - turns], axis=1).ravel()[: len(names)]
        for side in (0, 1):
            asked, others = known.of(names[sides == side]), known.of(names[sides != side])
            yield Compared.with_cohort(asked.points, others.points.directions), asked.codes


def _example_pairs(
    compared: Compared, codes: Codes, generator: np.random.Generator
) -> tuple[Floats, Bools, Floats]:
    """Return signals of pairs, whether each pair shows the same identity, and weights.

    All pairs of the same identity are returned, and a sample of the other pairs.
    """
    first, second = np.triu_indices(len(codes), 1)
    same = codes[first] == codes[second]
    different = np.flatnonzero(~same)
    drawn = generator.permutation(different)[:_MOST_DIFFERENT]
    rows = np.concatenate([np.flatnonzero(same), drawn])
    weights = np.where(same[rows], 1.0, len(different) / max(len(drawn), 1)) / len(same)
    return compared.signals(first[rows], second[rows]), same[rows], weights


def _joined_pairs(
    pairs: PairModel, halves: Sequence[tuple[Compared, Codes]]
) -> tuple[Floats, Bools, float]:
    """Return the held-out pairs that are joined, and the share of pairs of the same identity.

    Returns
    -------
    ratios : (P,) log-likelihood ratios at which the pairs are joined.
    same : (P,) whether each pair shows the same identity.
    share : mean of `share_of_same` over the halves.
    """
    ratios, outcomes, shares = [], [], []
    for compared, codes in halves:
        parts, share = joined(compared, pairs)
        shares.append(share)
        for part in parts:
            heights = part.heights()
            first, second = np.triu_indices(len(part.rows), 1)
            same = codes[part.rows[first]] == codes[part.rows[second]]
            above = heights >= FLOOR
            ratios.append(heights[above] - logit(share))
            outcomes.append(same[above])
    of_all = float(np.mean(shares))
    ends = np.full(2, FLOOR - logit(of_all))  # of nothing that is joined, nothing is known
    return (
        np.concatenate([ends, *ratios]),
        np.concatenate([[False, True], *outcomes]),
        of_all,
    )


def _square(condensed: Floats, n: int) -> Floats:
    """Convert SciPy's condensed matrix to a symmetric matrix (n, n) with a zero diagonal."""
    whole = np.zeros((n, n))
    whole[np.triu_indices(n, 1)] = condensed
    return whole + whole.T
