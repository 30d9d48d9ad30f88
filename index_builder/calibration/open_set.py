"""Measures the errors of verdicts on queries with and without a match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.metrics import calibration_error, evened, reliability
from model_store.answers import Answer
from model_store.decision import Calibration
from model_store.decision.operating import exact_interval

CONFIDENCE = 0.95
"""Confidence level of the exact intervals of shares that are computed from counts (Clopper &
Pearson 1934)."""

MOST_GROUPS = 20
"""Maximum number of groups in the report, which lists the groups with the most errors."""

N_POINTS = 100
"""Number of points of the risk-coverage curve."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


class Outcomes:
    """Outcomes of matched and absent queries in a calibrated gallery.

    Parameters
    ----------
    calibration : the calibration with its error bounds.
    answers : answers to B queries.
    correct : (B,) whether the first item is a true match.
    absent : (B,) whether the gallery has no true match.
    parents : (B,) true parent of each query, at the level to which the answer rolled up: the answer
        then gives a parent instead of a label. None if the parent is unknown, or if the answer did
        not roll up.
    groups : (B,) group of each query.
    sources : (B,) source of each query.
    """

    def __init__(
        self,
        calibration: Calibration,
        answers: Sequence[Answer],
        correct: Bools,
        absent: Bools,
        parents: Sequence[str | None],
        groups: Sequence[str],
        sources: Sequence[str],
    ) -> None:
        self._calibration, self._absent, self._correct = calibration, absent, correct & ~absent
        self._groups, self._sources = np.array(groups), np.array(sources)
        self._clusters = np.unique(self._groups, return_inverse=True)[1].astype(np.int64)
        self._matched = np.array([one.decision.verdict == "match" for one in answers])
        self._probabilities = np.array(
            [one.matches[0].match_probability for one in answers], dtype=np.float64
        )
        rolled = [one.decision.roll_up for one in answers]
        self._levels = np.array(["" if one is None else one.level for one in rolled])
        self._rolled_right = np.array(
            [one is not None and one.label == own for one, own in zip(rolled, parents, strict=True)]
        )
        share = calibration.default_share if absent.any() and not absent.all() else None
        self._weights = np.full(len(absent), 1 / max(len(absent), 1))
        if share is not None:
            self._weights = np.where(absent, share / absent.sum(), (1 - share) / (~absent).sum())

    def described(self) -> dict[str, Any]:
        """Return the report as a JSON object.

        The report has the results for all queries, for each level and for each source, and the
        groups with the most wrong matches.
        """
        everything = np.ones(len(self._absent), dtype=bool)
        report = {
            **self._rates(everything),
            "reliability": [one.model_dump() for one in self._reliability(everything)],
            "risk_coverage": self._risk_coverage(),
            "point": self._point(),
            "max_error": self._calibration.max_error,
        }
        hierarchy = self._calibration.hierarchy
        if hierarchy is not None:
            report["levels"] = {name: self._rolled_up(name) for name in hierarchy.levels}
        if len(set(self._sources.tolist())) > 1:
            report["sources"] = {
                name or "unnamed": self._rates(self._sources == name)
                for name in np.unique(self._sources).tolist()
            }
        return {**report, "groups": self._worst_groups()}

    @property
    def surest_errors(self) -> NDArray[np.int64]:
        """Rows of the queries with a wrong first item; the most confident errors come first."""
        wrong = np.flatnonzero(~self._correct)
        order: NDArray[np.int64] = wrong[np.argsort(-self._probabilities[wrong], kind="stable")]
        return order

    def _rates(self, rows: Bools) -> dict[str, Any]:
        """Return rates of the queries in ``rows`` (B,), with confidence intervals.

        FPIR is the share of absent queries that get a match. FNIR is the share of matched queries
        that do not get their true match (ISO/IEC 19795-1).
        """
        matched, absent, correct = (
            one[rows] for one in (self._matched, self._absent, self._correct)
        )
        weights = self._weights[rows]
        answered = float(weights[matched].sum())
        return {
            "n_present": int((~absent).sum()),
            "n_absent": int(absent.sum()),
            "coverage": answered / float(weights.sum()) if rows.any() else None,
            "error": float(weights[matched & ~correct].sum()) / answered if answered else None,
            "error_of_present": self._share(rows & self._matched & ~self._absent, ~self._correct),
            "fpir": self._share(rows & self._absent, self._matched),
            "fnir": self._share(rows & ~self._absent, ~(self._matched & self._correct)),
            "ece": calibration_error(self._reliability(rows)) if rows.any() else None,
        }

    def _share(self, rows: Bools, counted: Bools) -> dict[str, Any]:
        """Return the share of ``counted`` queries among ``rows``, with its exact interval.

        Queries of one group count as one observation.
        """
        n, k = int(rows.sum()), int((rows & counted).sum())
        if n == 0:
            return {"n": 0, "share": None, "interval": None}
        interval = exact_interval(k / n, len(np.unique(self._clusters[rows])), CONFIDENCE)
        return {"n": n, "share": k / n, "interval": list(interval)}

    def _reliability(self, rows: Bools) -> Any:  # noqa: ANN401 - bins
        return reliability(
            self._probabilities[rows], self._correct[rows], weights=self._weights[rows]
        )

    def _risk_coverage(self) -> list[list[float]]:
        """Return pairs of the coverage and the error of the first items, for falling thresholds."""
        order = np.lexsort((self._weights, -self._probabilities))
        coverage = np.cumsum(self._weights[order])
        wrong = evened(self._probabilities, ~self._correct, self._weights)
        error = np.cumsum(self._weights[order] * wrong[order]) / coverage
        places = np.unique(np.linspace(0, len(order) - 1, N_POINTS).round().astype(int))
        return [[float(coverage[place]), float(error[place])] for place in places]

    def _point(self) -> dict[str, float] | None:
        """Return coverage, error and error bound of the verdict `match`; None without matches."""
        promises = self._calibration.promises()
        if not promises.gives_matches or not self._matched.any():
            return None
        answered = float(self._weights[self._matched].sum())
        return {
            "coverage": answered,
            "error": float(self._weights[self._matched & ~self._correct].sum()) / answered,
            "error_bound": promises.point.error_bound,
        }

    def _rolled_up(self, level: str) -> dict[str, Any]:
        """Return the share and the error of the answers that rolled up to ``level``."""
        rows = self._levels == level
        weight = float(self._weights[rows].sum())
        wrong = float(self._weights[rows & ~self._rolled_right].sum())
        return {
            "coverage": weight,
            "error": wrong / weight if weight else None,
            "error_of_all": self._share(rows, ~self._rolled_right),
        }

    def _worst_groups(self) -> dict[str, Any]:
        """Return the number of groups, and the groups with the most wrong matches."""
        wrong = self._matched & ~self._correct
        counts = np.bincount(self._clusters, wrong)
        names, sizes = np.unique(self._groups, return_counts=True)
        worst = np.argsort(-counts, kind="stable")[:MOST_GROUPS]
        return {
            "n": len(names),
            "worst": {
                str(names[row]): {"n": int(sizes[row]), "wrong_matches": int(counts[row])}
                for row in worst
                if counts[row]
            },
        }
