"""From the records of all repetitions to the benchmark's numbers, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.stats import beta

from .catalogue import LARGE, WITH_GROUPS, WRONG_LABELS
from .measures import SHARES, STATED, Record, means

MEASURED = {
    "absent_auroc_gain_caltech": (
        "AUROC of P(no match) for absent labels, minus that of the similarity: Caltech-101",
        "≥ 0.01",
    ),
    "absent_auroc_gain_omniglot": ("the same: Omniglot", "≥ 0.10"),
    "absent_auroc_gain_worst": ("the same: the worst world", "≥ 0"),
    "max_error_exceeded": ("calibrations whose error of `match` exceeds `max_error`", "≤ 0.10"),
    "max_error_exceeded_deleted": (
        "the same, after three whole labels are deleted, of calibrations with a guarantee",
        "≤ 0.10",
    ),
    "fpir_exceeded": ("calibrations whose false-match rate exceeds its guarantee", "≤ 0.10"),
    "error_bound_exceeded": ("calibrations whose error exceeds `error_bound`", "≤ 0.10"),
    "coverage_missed": (
        "calibrations whose result sets miss their coverage, with its 95 % interval",
        "≤ 0.10",
    ),
    "false_alarms_groups": ("ordinary queries that are flagged at α = 5 %", "0.04 to 0.06"),
    "ece_share_given": (
        "expected calibration error if the share of absent queries is given",
        "≤ 0.03",
    ),
    "ece_share_estimated": ("the same, if the share is estimated", "≤ 0.05"),
    "ece_filters": ("the same, with filters", "≤ 0.02"),
    "error_after_feedback": ("error of `match` after a perfect correction by feedback", "≤ 0.055"),
    "outlier_regret": (
        "AUROC of the best single signal, minus that of the outlier score",
        "≤ 0.08",
    ),
    "drift_spread_found": (
        "streams of a spread × 1.5 whose drift is found in 300 queries, n = 100",
        "≥ 0.80",
    ),
    "drift_spread_found_300": ("the same, after a calibration with n = 300 queries", "≥ 0.85"),
    "drift_false_alarms": (
        "streams of 1,000 queries of another share of absent ones in which drift is found",
        "≤ 0.01",
    ),
    "others_lost_match": (
        "ordinary queries of other callers that lose `match` after 500 unusual uploads",
        "0",
    ),
    "answers_changed": ("answers that differ after 1,000 other queries", "0"),
    "reviews_ratio": (
        "reviews for the same interval, weighted draws over draws of one probability",
        "≤ 0.65",
    ),
    "reviews_interval_missed": ("intervals that do not hold the true error", "≤ 0.05"),
    "planner_ratio_lowest": ("planned over needed calibration queries: lowest", "≥ 0.7"),
    "planner_ratio_highest": ("the same: highest", "≤ 1.3"),
    "fpir_over_foretold": ("false-match rate over the rate that was forecast", "≤ 1.1"),
}
"""What each number is, and what it is to reach."""

N_BINS = 15
"""Of a reliability diagram, as everywhere."""

Records = Mapping[str, Sequence[Record]]


def summarise(
    of_worlds: Records, real: frozenset[str], oracles: frozenset[str] = frozenset()
) -> tuple[Record, Record]:
    """Reduce the records of each world.

    Parameters
    ----------
    of_worlds : of each world, one record of `measure` for each repetition.
    real : names of the worlds whose test queries are few: there a promise is broken where these
        show it at the 5 % level.
    oracles : names of worlds that are told more than a calibration can know, and count for nothing.

    Returns
    -------
    numbers : the worst world counts; ``worst`` names it for each number. ``intervals`` holds the
        95 % intervals of the share of its calibrations whose result sets miss their coverage.
    worlds : the means over the repetitions of each world, and how many there were.
    """
    worlds = {
        name: _of_world(records, finite_test=name in real) for name, records in of_worlds.items()
    }
    calibrated = {
        name: one for name, one in worlds.items() if one["calibrated"] and name not in oracles
    }
    numbers: Record = {"worst": {}}

    def note(
        key: str,
        some: Mapping[str, Record],
        value: Callable[[Record], float | None],
        extreme: Callable[..., str] = max,
    ) -> None:
        found = {name: got for name, one in some.items() if (got := value(one)) is not None}
        if found:
            numbers["worst"][key] = extreme(found, key=found.__getitem__)
            numbers[key] = found[numbers["worst"][key]]

    note("absent_auroc_gain_worst", calibrated, lambda one: one["absent_auroc_gain"], min)
    for key in (
        "fpir_over_foretold",
        "max_error_exceeded",
        "fpir_exceeded",
        "error_bound_exceeded",
    ):
        note(key, calibrated, itemgetter(key))
    note(
        "max_error_exceeded_any_share",
        calibrated,
        lambda one: max(one["max_error_exceeded_by_share"].values()),
    )
    note(
        "max_error_exceeded_unshown_labels",
        calibrated,
        lambda one: one.get("with_unshown_labels", {}).get("max_error_exceeded"),
    )
    note(
        "coverage_missed",
        calibrated,
        lambda one: max(one["coverage_missed"].values(), default=None),
    )
    if name := numbers["worst"].get("coverage_missed"):
        numbers["intervals"] = {"coverage_missed": worlds[name]["coverage_missed_interval"]}
    # Where labels are wrong, they and the truth cannot both be foretold: that world stands apart.
    truthful = {name: one for name, one in calibrated.items() if name != WRONG_LABELS}
    for suffix, some in (
        ("", truthful),
        ("_wrong_labels", {n: one for n, one in calibrated.items() if n == WRONG_LABELS}),
    ):
        note(f"ece_share_given{suffix}", some, _largest("ece_given"))
        for name, followed in (("estimated", True), ("not_followed", False)):
            note(
                f"ece_share_{name}{suffix}",
                {n: one for n, one in some.items() if one["follows_estimate"] is followed},
                _largest("ece_estimated"),
            )
    for short, name in (("caltech", "Caltech-101"), ("omniglot", "Omniglot")):
        if name in calibrated:
            numbers[f"absent_auroc_gain_{short}"] = calibrated[name]["absent_auroc_gain"]
    if WITH_GROUPS in calibrated:
        numbers["false_alarms_groups"] = calibrated[WITH_GROUPS]["mean"]["false_alarms"]
    if LARGE in calibrated:
        numbers["error_after_feedback"] = calibrated[LARGE]["error_after_feedback"]
    return numbers, worlds


def _of_world(records: Sequence[Record], *, finite_test: bool) -> Record:
    done = [record for record in records if "refused" not in record]
    refused = {record["refused"] for record in records if "refused" in record}
    summary: Record = {"repetitions": len(records), "calibrated": len(done)}
    if refused:
        summary["refused"] = sorted(refused)
    if not done:
        return summary
    shown = "shown_" if finite_test else ""
    promised = [r["false_match_rate_promise"] for r in done]
    stated = [r["streams"][f"{STATED:g}"] for r in done]
    corrected = [r["feedback"] for r in done if r["feedback"]["answered_after"] > 0]
    foretold = [one for one in stated if one["foretold_false_match_rate"] is not None]
    unshown = [r["with_unshown"] for r in done if r["with_unshown"]]
    gains = [r["auroc_no_match"] - r["auroc_similarity"] for r in done]
    exceeded = {f"{share:g}": [r["streams"][f"{share:g}"] for r in done] for share in SHARES}
    classes = sorted({name for r in done for name in r["coverage"]})
    promises = {
        name: [one for r in done if (one := r["coverage"].get(name)) and one["promised"]]
        for name in classes
    }
    missed = {
        name: [one[f"{shown}missed"] for one in some] for name, some in promises.items() if some
    }
    summary |= {
        "absence": done[0]["absence"],
        "absent_auroc_gain": float(np.mean(gains)),
        "absent_auroc_gain_standard_error": float(np.std(gains) / max(len(gains) - 1, 1) ** 0.5),
        "fpir_over_foretold": _ratio(
            [one["false_match_rate"] for one in foretold],
            [one["foretold_false_match_rate"] for one in foretold],
        ),
        "fpir_over_foretold_standard_error": _ratio_error(
            [one["false_match_rate"] for one in foretold],
            [one["foretold_false_match_rate"] for one in foretold],
        ),
        "max_error_promised": _share(one["promised"] for one in stated),
        "max_error_exceeded": _share(one[f"{shown}exceeded"] for one in stated),
        "error_bound_exceeded": None
        if finite_test
        else _share(record["bound"]["exceeded"] for record in done),
        "max_error_exceeded_interval": _interval([one[f"{shown}exceeded"] for one in stated]),
        "max_error_exceeded_by_share": {
            share: _share(one[f"{shown}exceeded"] for one in streams)
            for share, streams in exceeded.items()
        },
        "fpir_promised": _share(one["promised"] for one in promised),
        "fpir_exceeded": _share(one[f"{shown}exceeded"] for one in promised),
        "fpir_exceeded_interval": _interval([one[f"{shown}exceeded"] for one in promised]),
        "coverage_promised": {
            name: _share(r["coverage"][name]["promised"] for r in done if name in r["coverage"])
            for name in classes
        },
        "coverage_missed": {name: _share(one) for name, one in missed.items()},
        "coverage_missed_interval": _interval(max(missed.values(), key=_share, default=[])),
        "follows_estimate": any(one["estimate"] is not None for one in stated),
        "ece_given": _beyond_chance(done, "ece_given"),
        "ece_pooled": {
            f"{share:g}": pooled_error([r["streams"][f"{share:g}"]["bins_given"] for r in done])
            for share in SHARES
        },
        "ece_estimated": _beyond_chance(done, "ece_estimated"),
        "baseline_max_error_exceeded": _share(r["baseline"]["exceeded"] for r in done),
        "mean": means(done),
    }
    if unshown:
        summary["with_unshown_labels"] = {
            "max_error_exceeded": _share(one[f"{shown}exceeded"] for one in unshown),
            **means(unshown),
        }
    if corrected:
        summary["error_after_feedback"] = float(np.mean([one["error_after"] for one in corrected]))
    return summary


COLUMNS = ("", "measured", "wanted")


def rows(numbers: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row for each of the benchmark's numbers, as in `COLUMNS`."""
    worst = {name: f" ({world})" for name, world in numbers["worst"].items()}
    for name, (low, high) in numbers.get("intervals", {}).items():
        worst[name] = f", {low:.3f} to {high:.3f}{worst[name]}"
    return [
        (sentence, f"{numbers[name]:.3f}{worst.get(name, '') if numbers[name] else ''}", wanted)
        for name, (sentence, wanted) in MEASURED.items()
        if name in numbers
    ]


def sizes_of(worlds: Mapping[str, Record], real: frozenset[str]) -> str:
    """Return how often the worlds were drawn or divided, as sentences."""
    counts = [
        [one["repetitions"] for name, one in worlds.items() if (name in real) is is_real]
        for is_real in (False, True)
    ]
    parts = [
        f"{len(of_kind)} {kind} ({min(of_kind)} to {max(of_kind)} repetitions)"
        for kind, of_kind in zip(("synthetic worlds", "real data sets"), counts, strict=True)
        if of_kind
    ]
    return f"The worst world counts, of {' and '.join(parts)}."


def table_of_worlds(worlds: Mapping[str, Record]) -> str:
    """Return one row for each world, as Markdown."""
    heads = (
        "world",
        "AUROC, gain",
        "FPIR, foretold",
        "answered",
        "error > 5 %",
        "… the usual way",
        "FPIR > 10 %",
        "coverage missed",
        "ECE, share given",
        "… all repetitions pooled",
        "… estimated",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, one in worlds.items():
        if not one["calibrated"]:
            lines.append(f"| {name} | refused |" + " – |" * 9)
            continue
        mean, stated = one["mean"], one["mean"]["streams"][f"{STATED:g}"]
        missed = max(one["coverage_missed"].values(), default=None)
        foretold = _shown(stated.get("foretold_false_match_rate"))
        lines.append(
            f"| {name} | {mean['auroc_no_match']:.3f}, {one['absent_auroc_gain']:+.3f} "
            f"| {stated['false_match_rate']:.3f}, {foretold} "
            f"| {stated['answered']:.2f} | {one['max_error_exceeded']:.2f} "
            f"| {one['baseline_max_error_exceeded']:.2f} | {one['fpir_exceeded']:.2f} of "
            f"{one['fpir_promised']:.2f} | {_shown(missed)} "
            f"| {max(one['ece_given'].values()):.3f} | {max(one['ece_pooled'].values()):.3f} "
            f"| {max(one['ece_estimated'].values()):.3f}"
            f"{'' if one['follows_estimate'] else ' (not followed)'} |"
        )
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _beyond_chance(records: Sequence[Record], name: str) -> Record:
    """Return the ECE at each share beyond that of a perfect predictor.

    Any finite test finds an error. As their squares add up (Kumar et al. 2019), √(ECE² − ECE₀²) is
    left, with ECE₀ what would be found on average if each probability were the truth.
    """
    left: Record = {}
    for share in SHARES:
        streams = [record["streams"][f"{share:g}"] for record in records]
        found, chance = (np.mean([one[key] for one in streams]) for key in (name, "ece_perfect"))
        left[f"{share:g}"] = float(np.sqrt(max(found**2 - chance**2, 0.0)))
    return left


def pooled_error(bins: Sequence[Sequence[Sequence[float]]]) -> float:
    """Return the ECE of all repetitions together: what one errs by and another makes good is gone.

    Parameters
    ----------
    bins : of each repetition, weight, mean probability and share of what came true of each bin.
    """
    weights, probabilities, shares = np.concatenate([np.array(one) for one in bins]).T
    order = np.argsort(probabilities, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    place = np.minimum((reached * N_BINS - 1e-9).astype(int), N_BINS - 1)
    missing = np.bincount(place, (weights * (shares - probabilities))[order])
    return float(np.abs(missing).sum() / weights.sum())


def _largest(name: str) -> Callable[[Record], float]:
    return lambda one: max(one[name].values())


def _share(outcomes: Iterable[bool]) -> float:
    return float(np.mean(list(outcomes)))


def _ratio(values: Sequence[float], foretold: Sequence[float]) -> float | None:
    """Return the ratio of the means; None where nothing was let through either way."""
    if not foretold or np.mean(foretold) == 0:
        return None
    return float(np.mean(values) / np.mean(foretold))


def _ratio_error(values: Sequence[float], foretold: Sequence[float]) -> float | None:
    """Return the standard error of `_ratio`, to first order."""
    ratio = _ratio(values, foretold)
    if ratio is None or len(values) < 2:
        return None
    left = np.array(values) - ratio * np.array(foretold)
    return float(left.std(ddof=1) / len(values) ** 0.5 / np.mean(foretold))


def _interval(outcomes: Sequence[bool]) -> list[float]:
    """Return the 95 % interval of a share (Clopper & Pearson 1934)."""
    n, k = len(outcomes), int(np.sum(outcomes))
    return [
        float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0,
        float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0,
    ]
