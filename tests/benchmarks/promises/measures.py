"""What came true of what one calibration promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import ENOUGH
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet
from index_builder.metrics import auroc, calibration_error, reliability
from model_store.decision import SIZE_CLASSES, Calibration, Recalibration
from model_store.decision.absent_share import ServedShare, ShareReference
from model_store.encoder.contract import Encoder
from model_store.errors import CalibrationError
from model_store.gallery import Gallery
from model_store.records import ReliabilityBin
from model_store.search import N_CANDIDATES

from .answers import Answers, answer_all

SHARES = (0.01, 0.05, 0.2, 0.5, 0.9)
"""Of absent queries, in the streams that are asked."""

STATED = 0.05
"""Share that a calibration takes for granted where nobody says."""

ALPHA, MAX_ERROR, MAX_FALSE_MATCH_RATE, COVERAGE = 0.05, 0.05, 0.1, 0.9

LIKELY = 0.9
"""Match probability from which on first items are judged, whatever error they may have."""

N_SERVED = 1000
"""Queries of a stream from which the share of absent ones is estimated."""

NATS = 1.2
"""By which log-odds are too high before users' feedback corrects them."""

_DOUBT = 0.05
"""Level at which test queries have to show that a promise is broken, where they are few."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Record = dict[str, Any]


LEARNED = "Fashion-MNIST"
"""What the names of worlds begin with whose encoder has learned the gallery's labels."""


class AnyWorld(Protocol):
    """A gallery to calibrate and queries to test it with, see `worlds.World`."""

    @property
    def encoder(self) -> Encoder: ...
    @property
    def gallery(self) -> Gallery: ...
    @property
    def gallery_images(self) -> LabelledImages: ...
    @property
    def calibration(self) -> QuerySet: ...
    @property
    def matched(self) -> LabelledImages: ...
    @property
    def absent(self) -> LabelledImages: ...
    @property
    def unseen(self) -> bool: ...
    @property
    def name(self) -> str: ...


def calibrate(world: AnyWorld, seed: int, **fields: Any) -> Calibration:
    """Calibrate the gallery of a world as the index builder does."""
    config = CalibrationConfig(alpha=ALPHA, coverage=COVERAGE, max_error=MAX_ERROR).model_copy(
        update=fields
    )
    inputs = GalleryQueries(
        *(world.encoder, world.gallery, world.gallery_images, world.calibration, seed),
        are_views=False,
        unseen=not world.name.startswith(LEARNED),
        enough=ENOUGH if world.unseen else 0,
    )
    return calibrate_gallery(inputs, config)


def measure(world: AnyWorld, seed: int) -> Record:
    """Calibrate once, and compare with the truth all that is said.

    Promises are for queries such as the calibration has shown: labels of a size class of which it
    had no query are judged apart, as ``with_unshown``.

    Returns
    -------
    Numbers by name; ``refused`` alone where the calibration is.
    """
    try:
        calibration = calibrate(world, seed)
    except CalibrationError as error:
        return {"refused": str(error)}
    matched, absent = (
        answer_all(world.encoder, world.gallery, calibration, images)
        for images in (world.matched, world.absent)
    )
    everybody, evidence = matched, calibration.evidence
    shown = np.isin(matched.true_classes, evidence.true_classes[~evidence.absent])
    matched = everybody.at(shown)
    generator = np.random.default_rng([seed, 3])
    limited = replace(calibration, max_false_match_rate=MAX_FALSE_MATCH_RATE)
    by_no_match = auroc(absent.no_match, matched.no_match)
    by_similarity = auroc(-absent.similarities, -matched.similarities)
    assert by_no_match is not None
    assert by_similarity is not None
    return {
        "absence": evidence.absence,
        "recall_at_1": float(matched.correct.mean()),
        "auroc_no_match": by_no_match,
        "auroc_similarity": by_similarity,
        "false_alarms": float((matched.p_values <= ALPHA).mean()),
        "streams": {
            f"{share:g}": of_stream(calibration, matched, absent, share, generator)
            for share in SHARES
        },
        "false_match_rate_promise": of_false_match_rate(limited, matched, absent),
        "coverage": of_sets(calibration, everybody),
        "bound": of_bound(calibration, matched, absent),
        "feedback": of_feedback(calibration, matched, absent),
        "baseline": of_baseline(world, matched, absent),
        "with_unshown": None
        if shown.all()
        else of_stream(calibration, everybody, absent, STATED, generator),
    }


def of_stream(
    calibration: Calibration,
    matched: Answers,
    absent: Answers,
    share: float,
    generator: np.random.Generator,
) -> Record:
    """Judge probabilities and verdicts where a share of the queries is absent.

    The stream is never drawn: test queries are weighted to it. The share is either given or
    estimated from `N_SERVED` queries.
    """
    weights = np.repeat(
        [(1 - share) / len(matched), share / len(absent)], [len(matched), len(absent)]
    )
    estimate = served_share(calibration, matched, absent, share, generator)
    used = calibration.default_share if estimate is None else estimate
    point = calibration.promises(share).point
    bins = stream_bins(calibration, matched, absent, weights, share)
    record = of_verdicts(calibration, matched, absent, share, share) | {
        "foretold_error": point.error,
        "foretold_error_bound": point.error_bound,
        "foretold_false_match_rate": point.false_match_rate,
        "foretold_false_match_bound": point.false_match_bound,
        "bins_given": [[one.weight, one.probability, one.share] for one in bins],
        "ece_given": calibration_error(bins),
        "estimate": estimate,
        "ece_estimated": calibration_error(
            stream_bins(calibration, matched, absent, weights, used)
        ),
        "ece_perfect": perfect_error(calibration, matched, absent, weights, share, generator),
        "no_match_ece": no_match_error(calibration, matched, absent, weights, share),
    }
    of_estimate = of_verdicts(calibration, matched, absent, share, used)
    return record | {f"{name}_estimated": of_estimate[name] for name in ("error", "exceeded")}


def of_verdicts(
    calibration: Calibration, matched: Answers, absent: Answers, share: float, stated: float
) -> Record:
    """Compare the verdict ``match`` with the truth, where a share is absent and one is stated."""
    is_match, is_false = (one.is_match(calibration, stated, ALPHA) for one in (matched, absent))
    promised = any(np.isfinite(one.threshold) for one in calibration.promises(stated).matches)
    of_matched, of_absent = (1 - share) / len(matched), share / len(absent)
    wrong = of_matched * (is_match & ~matched.correct).sum() + of_absent * is_false.sum()
    accepted = of_matched * is_match.sum() + of_absent * is_false.sum()
    squares = of_matched**2 * is_match.sum() + of_absent**2 * is_false.sum()
    error = float(wrong / accepted) if accepted else 0.0
    n = float(accepted**2 / squares) if accepted else 0.0
    return {
        "promised": promised,
        "answered": float(is_match.mean()),
        "error": error,
        "exceeded": error > MAX_ERROR,
        "shown_exceeded": shown_above(error, n, MAX_ERROR),
        "false_match_rate": float(is_false.mean()),
    }


def of_false_match_rate(calibration: Calibration, matched: Answers, absent: Answers) -> Record:
    """Compare a promised FPIR with the true one."""
    verdicts = of_verdicts(calibration, matched, absent, STATED, STATED)
    rate = verdicts["false_match_rate"]
    return {
        "promised": verdicts["promised"],
        "answered": verdicts["answered"],
        "false_match_rate": rate,
        "exceeded": rate > MAX_FALSE_MATCH_RATE,
        "shown_exceeded": shown_above(rate, len(absent), MAX_FALSE_MATCH_RATE),
        "error": verdicts["error"],
    }


def of_bound(calibration: Calibration, matched: Answers, absent: Answers) -> Record:
    """Compare the bound of the error with the true one, where first items from `LIKELY` on count.

    The threshold is fixed beforehand: the bound of a chosen one is a test of ``max_error``.
    """
    wrong = accepted = 0.0
    for part, share in ((matched, 1 - STATED), (absent, STATED)):
        called = part.at_share(calibration, STATED) >= LIKELY
        called &= part.ordinary(calibration, ALPHA)
        accepted += share * float(called.mean())
        wrong += share * float((called & ~part.correct).mean())
    error = wrong / accepted if accepted else 0.0
    bound = calibration.promises(STATED).stream.point(LIKELY).error_bound
    return {"error": error, "bound": bound, "exceeded": error > bound}


def of_sets(calibration: Calibration, matched: Answers) -> dict[str, Record]:
    """Compare the coverage of result sets with what is promised, for each size class asked for."""
    promised_for = calibration.promises().sets.promised_for(COVERAGE)
    record: dict[str, Record] = {}
    for place, name in enumerate(SIZE_CLASSES):
        rows = matched.true_classes == place
        if rows.any():
            covered = float(matched.covered[rows].mean())
            record[name] = {
                "promised": name in promised_for,
                "covered": covered,
                "missed": covered < COVERAGE,
                "shown_missed": shown_above(1 - covered, int(rows.sum()), 1 - COVERAGE),
                "mean_size": float(matched.set_sizes[rows].mean()),
            }
    return record


def of_feedback(calibration: Calibration, matched: Answers, absent: Answers) -> Record:
    """Judge verdicts after a perfect correction.

    The truth is taken to lie `NATS` below what is served: an item of log-odds λ is a match with
    probability 1 / (1 + exp(`NATS` − λ)). Users have said so of very many pairs.
    """
    probabilities = np.r_[
        matched.at_share(calibration, STATED), absent.at_share(calibration, STATED)
    ]
    weights = np.repeat(
        [(1 - STATED) / len(matched), STATED / len(absent)], [len(matched), len(absent)]
    )
    clipped = np.clip(probabilities, 1e-9, 1 - 1e-9)
    truth = expit(np.log(clipped / (1 - clipped)) - NATS)

    def error(one: Calibration) -> float:
        is_match = np.r_[matched.is_match(one, STATED, ALPHA), absent.is_match(one, STATED, ALPHA)]
        weight = weights * is_match
        return float(weight @ (1 - truth) / weight.sum()) if is_match.any() else 0.0

    corrected = replace(calibration, feedback=Recalibration(1.0, -NATS, 100_000))
    return {
        "error_before": error(calibration),
        "error_after": error(corrected),
        "answered_after": float(matched.is_match(corrected, STATED, ALPHA).mean()),
    }


def of_baseline(world: AnyWorld, matched: Answers, absent: Answers) -> Record:
    """Judge the usual way: the lowest similarity from which held-out queries err seldom enough."""
    queries = world.calibration.matched
    batches = queries.batches(world.encoder.metadata.preprocessing, 512)
    directions = np.concatenate([world.encoder.encode(batch).directions for _, batch in batches])
    found = world.gallery.candidates(directions, min(N_CANDIDATES, world.gallery.n_items))
    names = np.array(world.gallery.labels)
    wrong = names[world.gallery.label_codes(found.rows[:, 0])] != np.array(queries.labels)
    similarities = found.similarities[:, 0]
    order = np.argsort(-similarities)
    errors = np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)
    good = np.flatnonzero(errors <= MAX_ERROR)
    threshold = similarities[order][good[-1]] if len(good) else np.inf
    is_match, is_false = matched.similarities >= threshold, absent.similarities >= threshold
    of_matched, of_absent = (1 - STATED) / len(matched), STATED / len(absent)
    accepted = of_matched * is_match.sum() + of_absent * is_false.sum()
    wrongly = of_matched * (is_match & ~matched.correct).sum() + of_absent * is_false.sum()
    error = float(wrongly / accepted) if accepted else 0.0
    return {
        "answered": float(is_match.mean()),
        "error": error,
        "exceeded": error > MAX_ERROR,
        "false_match_rate": float(is_false.mean()),
    }


def served_share(
    calibration: Calibration,
    matched: Answers,
    absent: Answers,
    share: float,
    generator: np.random.Generator,
) -> float | None:
    """Estimate the share of absent queries from served ones, as an operator may adopt it.

    Where test queries are few, some are served more than once.

    Returns
    -------
    None where the estimate is only a hint.
    """
    if calibration.estimate_is_hint:
        return None
    n_absent = generator.binomial(N_SERVED, share)
    served = np.r_[
        generator.choice(absent.no_match, n_absent),
        generator.choice(matched.no_match, N_SERVED - n_absent),
    ]
    counted = ServedShare()
    for no_match in generator.permutation(served).tolist():
        counted.observe(no_match)
    reference = ShareReference(calibration.evidence, calibration.assumed_absent)
    estimate = reference.estimate(counted)
    return None if estimate is None else estimate.value


def stream_bins(
    calibration: Calibration, matched: Answers, absent: Answers, weights: Floats, stated: float
) -> list[ReliabilityBin]:
    """Return the reliability of first items' match probabilities on a weighted stream."""
    probabilities = np.r_[
        matched.at_share(calibration, stated), absent.at_share(calibration, stated)
    ]
    outcomes = np.r_[matched.correct, np.zeros(len(absent), dtype=bool)]
    return reliability(probabilities, outcomes, weights=weights)


def perfect_error(
    calibration: Calibration,
    matched: Answers,
    absent: Answers,
    weights: Floats,
    stated: float,
    generator: np.random.Generator,
) -> float:
    """Return what the ECE would be, on average, if each probability were the truth."""
    probabilities = np.r_[
        matched.at_share(calibration, stated), absent.at_share(calibration, stated)
    ]
    draws = generator.random((5, len(probabilities))) < probabilities
    return float(
        np.mean(
            [
                calibration_error(reliability(probabilities, drawn, weights=weights))
                for drawn in draws
            ]
        )
    )


def no_match_error(
    calibration: Calibration, matched: Answers, absent: Answers, weights: Floats, stated: float
) -> float:
    """Return the ECE of P(no match) on a weighted stream, without feedback."""
    no_match = np.r_[matched.no_match, absent.no_match]
    odds = stated / (1 - stated) * (1 - calibration.assumed_absent) / calibration.assumed_absent
    moved = odds * no_match / (odds * no_match + 1 - no_match)
    outcomes = np.repeat([False, True], [len(matched), len(absent)])
    return calibration_error(reliability(moved, outcomes, weights=weights))


def shown_above(share: float, n: float, limit: float) -> bool:
    """Return whether a share seen among n test queries shows that the true one exceeds a limit."""
    return bool(n > 0 and binom.sf(round(share * n) - 1, round(n), limit) < _DOUBT)


def means(records: Sequence[Mapping[str, Any]]) -> Record:
    """Average what the records have of each name; what is no number is left out."""
    merged: Record = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record[name] for record in records if record.get(name) is not None]
        if not values:
            continue
        if isinstance(values[0], Mapping):
            merged[name] = means(values)
        elif isinstance(values[0], int | float | bool):
            merged[name] = float(np.mean(values))
    return merged
