"""Groups queries that match nothing into probable new identities."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.calibration.retrieval import BY_LABEL
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import joined
from index_builder.indexing.bundle_evidence import EvidenceSource, opened, queries_of, reading
from index_builder.indexing.evaluation_page import picture_of, rendered
from index_builder.vectors.encoder import embedded
from model_store.errors import CalibrationError
from model_store.identities import PRECISION, UNKNOWN, Group, Grouping, group_id
from model_store.identity_pairs import Points
from model_store.retriever import Retriever
from model_store.text_values import to_cell

N_SHOWN = 100
"""Maximum number of groups on a page, and maximum number of shown members per group."""


@dataclass(frozen=True, slots=True)
class UnknownGrouping:
    """Queries that match nothing, in groups.

    Attributes
    ----------
    name : the gallery's name.
    queries : all queries, with and without a match.
    verdicts : number of queries by verdict.
    unknown : (n,) indices of the queries that match nothing.
    groups : groups of queries that probably show the same identity. The rows of a group are
        positions in ``unknown``.
    precision : among all pairs of queries in the same group, the expected share of pairs that show
        the same identity.
    """

    name: str
    queries: LabelledImages
    verdicts: dict[str, int]
    unknown: Sequence[int]
    groups: Sequence[Group]
    precision: float

    def ids(self, group: Group) -> list[str]:
        """Return the ids of the members of a group."""
        return [self.queries.ids[self.unknown[row]] for row in group.rows]

    def report(self) -> dict[str, Any]:
        """Return the groups as a JSON object."""
        grouped = {row for group in self.groups for row in group.rows.tolist()}
        return {
            "gallery": self.name,
            "n_queries": len(self.queries),
            "verdicts": self.verdicts,
            "n_unknown": len(self.unknown),
            "n_grouped": len(grouped),
            "precision": self.precision,
            "groups": [self._described(group) for group in self.groups],
            "ungrouped": [
                self.queries.ids[place]
                for row, place in enumerate(self.unknown)
                if row not in grouped
            ],
        }

    def _described(self, group: Group) -> dict[str, Any]:
        ids = self.ids(group)
        return {
            "id": group_id(ids),
            "p_same": group.probability,
            "medoid": self.queries.ids[self.unknown[group.medoid]],
            "members": [
                {"id": name, "p_same": probability}
                for name, probability in zip(ids, group.probabilities.tolist(), strict=True)
            ],
        }

    def table(self) -> str:
        """Return the members of all groups as CSV.

        Ids are escaped, so that a spreadsheet runs no formula.
        """
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["id", "group", "p_same", "medoid"])
        for group in self.report()["groups"]:
            for member in group["members"]:
                is_medoid = int(member["id"] == group["medoid"])
                name = to_cell(member["id"])
                writer.writerow([name, group["id"], f"{member['p_same']:.4f}", is_medoid])
        return buffer.getvalue()

    def page(self) -> str:
        """Return an HTML page with pictures. In each group, the most central query comes first."""
        shown = []
        for group, described in zip(self.groups, self.report()["groups"], strict=False):
            rows = sorted(group.rows.tolist(), key=lambda row: row != group.medoid)[:N_SHOWN]
            members = [
                (self.queries.ids[place], picture_of(self.queries, place))
                for place in (self.unknown[row] for row in rows)
            ]
            shown.append({**described, "n": len(group.rows), "shown": members})
            if len(shown) == N_SHOWN:
                break
        report = self.report()
        return rendered("unknown.html.jinja", report=report, groups=shown)


def group_unknown(
    root: Path,
    evidence: EvidenceSource,
    precision: float = PRECISION,
    expected_absent: float | None = None,
    seed: int = 0,
) -> UnknownGrouping:
    """Search the current bundle of ``root``, and group the queries that match nothing.

    Parameters
    ----------
    evidence : the queries; the true matches of the queries are ignored.
    precision : among all pairs of queries in the same group, the expected share of pairs that show
        the same identity.
    expected_absent : expected share of queries without a match; if None, the bundle's value is
        used.

    Raises
    ------
    CalibrationError : the bundle is not calibrated.
    IdentitiesUnavailable : see `Grouping.of_bundle`.
    DatasetError : the queries are invalid.
    """
    with opened(root) as bundle, reading(bundle.retriever.encoder, evidence) as room:
        gallery, calibration = bundle.retriever.gallery, bundle.retriever.calibration
        if calibration is None:
            raise CalibrationError(
                "The bundle is not calibrated, so it cannot tell which queries have no match. Run "
                "`vouch-build calibrate BUNDLES --queries FILE` first."
            )
        grouping = Grouping.of_bundle(bundle, seed)
        own = queries_of(room, gallery, BY_LABEL)
        queries = joined(own.matched, own.withheld)
        retriever = Retriever(room.encoder, gallery, calibration)
        verdicts, points = _asked(retriever, queries, expected_absent)
        unknown = np.flatnonzero(np.isin(verdicts, UNKNOWN))
        return UnknownGrouping(
            root.name,
            queries,
            dict(Counter(verdicts)),
            unknown.tolist(),
            grouping.groups(points.at(unknown), precision),
            precision,
        )


def _asked(
    retriever: Retriever, queries: LabelledImages, expected_absent: float | None
) -> tuple[list[str], Points]:
    """Return the verdict and the embedding of each query."""
    verdicts: list[str] = []
    parts: list[Points] = []
    for _, found in embedded(retriever.encoder, queries, "queries"):
        parts.append(Points.of(found.mean, found.variance))
        for predictive in retriever.predictives(found):
            answer = retriever.find(predictive, 1, expected_absent=expected_absent)
            verdicts.append(answer.decision.verdict)
    return verdicts, Points.concatenate(parts)
