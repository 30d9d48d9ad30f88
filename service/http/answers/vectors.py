"""Answers to queries whose vector or neighbours come from another system."""

from __future__ import annotations

from service import schemas
from service.http.answers.bundles import bundle_state
from service.http.answers.search import absent_share, query
from service.serializers import milliseconds, result_set, roll_up
from service.serving.lease import Lease
from service.serving.queries import DecidedList


def decision_answer(lease: Lease, found: DecidedList, request_id: str) -> schemas.DecisionAnswer:
    """Describe the decision on neighbours that another store has found."""
    bundle, decided, sent = lease.bundle, found.decided, found.neighbours
    decision = decided.decision
    n = len(sent.ids)
    probabilities: list[float | None] = [None] * n
    if decision.match_probabilities is not None:
        probabilities = decision.match_probabilities.tolist()
    chosen = decision.result_set
    return schemas.DecisionAnswer(
        request_id=request_id,
        gallery=bundle.name,
        verdict=decision.verdict,
        reason=decision.reason,
        guaranteed=decision.guaranteed,
        roll_up=roll_up(decision),
        no_match_probability=decision.no_match_probability,
        absent=absent_share(lease, decision, found.share_origin),
        query=query(bundle, found, decision.assessment, found.alpha),
        neighbours=[
            schemas.DecidedNeighbour(
                id=sent.ids[place],
                label=sent.labels[place],
                similarity=float(decided.similarities[place]),
                match_probability=probabilities[place],
            )
            for place in range(n)
        ],
        result_set=None
        if chosen is None
        else result_set(
            chosen, [(sent.ids[place], sent.labels[place]) for place in chosen.places.tolist()]
        ),
        bundle=bundle_state(lease),
        timing_ms=milliseconds(found.seconds),
    )
