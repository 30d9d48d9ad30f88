"""Answers that roll up: labels above labels, and what is promised of each level."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from model_store.decision import (
    Calibration,
    Evidence,
    Hierarchy,
    LevelEvidence,
    Promises,
    Recalibration,
    Retrieved,
    decide,
    likeliest_parents,
)
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from model_store.decision.operating import Stream
from model_store.decision.verdict import MatchProbabilities
from model_store.records import RollUp
from tests.model_store.decision.test_verdict import EVIDENCE, TERMS, calibration, found, query
from tests.support.calibration_evidence import evidence
from tests.support.narrowing import not_none

CATS = Hierarchy.of(
    ["genus", "family"],
    {
        "lion": ["Panthera", "Felidae"],
        "tiger": ["Panthera", "Felidae"],
        "lynx": ["Lynx", "Felidae"],
        "wolf": [None, "Canidae"],
    },
)
LABELS = ("lion", "tiger", "wolf")
MANY = np.array([0, 0, 30])


def rolling(of: Evidence = EVIDENCE) -> Calibration:
    """A calibration whose gallery holds `LABELS`; parents are right as often as is said."""
    n = len(of)
    right = np.tile([[True, True]], (n, 1)) & ~of.absent[:, None]
    sums = np.where(of.absent[:, None], 0.05, 0.98) * np.ones((n, 2))
    known = replace(calibration(), hierarchy=CATS)
    return replace(known, evidence=replace(of, levels=LevelEvidence(sums, right)))


def retrieved(*similarities: float, codes: tuple[int, ...], allowed: object = None) -> Retrieved:
    """What was found, with the parents of its labels."""
    parents = CATS.of_labels([LABELS[code] for code in codes])
    listed = found(*similarities, labels=codes, allowed=allowed)  # type: ignore[arg-type]
    return replace(listed, parents=parents)


def test_a_parent_is_as_likely_as_its_labels_together() -> None:
    parents = CATS.of_labels(["lion", "wolf", "tiger", "nobody knows it", None])
    places, sums = likeliest_parents(parents, np.array([0.3, 0.4, 0.2, 0.1, 0.0]))
    assert [CATS.parents[level][place] for level, place in enumerate(places)] == [
        "Panthera",
        "Felidae",
    ]
    np.testing.assert_allclose(sums, [0.5, 0.5])


def test_places_of_parents_are_whole_numbers_of_four_bytes() -> None:
    """So they are stored; those of no label at all are too."""
    for places in (CATS.above, CATS.of_labels(["lion", None]), CATS.of_labels([])):
        assert places.dtype == np.int32
    assert CATS.of_labels([]).shape == (0, 2)
    assert likeliest_parents(CATS.above, np.full(4, 0.2))[0].dtype == np.int32


def test_labels_without_parents_have_levels_without_parents() -> None:
    none = Hierarchy.of(["genus", "family"], {})
    assert [list(parents) for parents in none.parents] == [[], []]


def test_known_filter_raises_a_parent_to_certainty_at_most() -> None:
    likely = np.array([0.6, 0.1])
    probabilities = MatchProbabilities(likely, likely, likely, nothing=0.3, known=2.0)
    parents = np.array([[0, 0], [1, 0]], dtype=np.int32)
    _, sums = probabilities.of_parents(calibration(), parents, None)
    assert sums.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(20))
def test_the_likeliest_parent_is_that_of_the_largest_sum(seed: int) -> None:
    """Any parent may be it, the first of its level and the last as well; some labels have none."""
    generator = np.random.default_rng(seed)
    parents = generator.integers(-1, 3, (6, 4)).astype(np.int32)
    parents[:, 3] = -1
    probabilities = generator.dirichlet(np.ones(6))
    places, sums = likeliest_parents(parents, probabilities)
    for level, of_labels in enumerate(parents.T):
        wanted = {
            int(place): float(probabilities[of_labels == place].sum())
            for place in of_labels
            if place >= 0
        }
        assert places[level] == (max(wanted, key=lambda place: wanted[place]) if wanted else -1)
        assert sums[level] == pytest.approx(max(wanted.values(), default=0.0))


@pytest.mark.parametrize(
    "changes",
    [{"above": np.zeros((1, 2), dtype=np.int32)}, {"levels": ("genus",)}, {"parents": ((),)}],
)
def test_parents_of_other_labels_or_levels_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wanted"):
        replace(CATS, **changes)


def test_an_ambiguous_query_rolls_up_to_the_finest_parent_that_is_sure() -> None:
    """Two labels share the probability, so that neither is a match, and their genus is."""
    listed = retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2))
    decision = decide(rolling(), query(), listed, TERMS)
    probabilities = not_none(decision.match_probabilities)
    assert decision.verdict == "ambiguous"
    rolled = not_none(decision.roll_up)
    assert (rolled.level, rolled.label) == ("genus", "Panthera")
    assert rolled.probability == pytest.approx(probabilities[0] + probabilities[1])


def test_it_rolls_up_no_further_than_it_is_sure_and_not_where_it_matches() -> None:
    both = retrieved(0.995, 0.2, 0.995, codes=(0, 1, 2))  # a cat or a dog: no parent of both
    assert decide(rolling(), query(), both, TERMS).roll_up is None
    clear = retrieved(0.9999, 0.2, 0.1, codes=(0, 1, 2))
    decision = decide(rolling(), query(), clear, TERMS)
    assert decision.verdict == "match"
    assert decision.roll_up is None
    stale = replace(TERMS, stale="the gallery is another")
    listed = retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2))
    assert decide(rolling(), query(), listed, stale).roll_up is None


def test_nothing_rolls_up_without_parents() -> None:
    listed = retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2))
    for known, found_items in (
        (calibration(), listed),
        (rolling(), replace(listed, parents=None)),
    ):
        assert decide(known, query(), found_items, TERMS).roll_up is None


def test_under_a_filter_it_counts_the_labels_that_pass() -> None:
    listed = retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2), allowed=(True, False, True))
    assert decide(rolling(), query(), listed, TERMS).roll_up is None
    known = replace(TERMS, filter_means="known")
    everything = retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2), allowed=(True, True, True))
    free = not_none(decide(rolling(), query(), replace(everything, allowed=None), TERMS).roll_up)
    rolled = not_none(decide(rolling(), query(), everything, known).roll_up)
    assert rolled.label == "Panthera"
    assert rolled.probability >= free.probability


def test_a_calibration_without_parents_is_written_as_ever(tmp_path: Path) -> None:
    flat, rolled = tmp_path / "flat", tmp_path / "rolled"
    flat.mkdir()
    rolled.mkdir()
    calibration().save(flat)
    rolling().save(rolled)
    assert "hierarchy" not in (flat / CALIBRATION_FILE).read_text()
    with np.load(flat / ARRAYS_FILE) as arrays:
        assert not [name for name in arrays if name.startswith(("evidence.levels", "hierarchy"))]
    assert not_none(Calibration.load(flat)).hierarchy is None
    read = not_none(Calibration.load(rolled))
    assert not_none(read.hierarchy).of_labels(["tiger"]).tolist() == [[1, 1]]
    np.testing.assert_array_equal(
        not_none(read.evidence.levels).correct, not_none(rolling().evidence.levels).correct
    )
    listed = retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2))
    assert (
        decide(read, query(), listed, TERMS).roll_up
        == decide(rolling(), query(), listed, TERMS).roll_up
    )


@pytest.mark.parametrize("within", [None, 2.5])
def test_a_calibration_is_read_with_all_that_it_may_lack_beside_that_of_texts(
    tmp_path: Path, within: float | None
) -> None:
    replace(rolling(), within=within, absent_outlier_scores=None).save(tmp_path)
    assert Calibration.load(tmp_path, "text") is None
    replace(rolling(), within=9.0).save(tmp_path, "text")
    assert not_none(Calibration.load(tmp_path)).within == within
    assert not_none(Calibration.load(tmp_path, "text")).within == 9


@pytest.mark.parametrize("part", ["delta", "feedback."])
def test_calibration_without_a_part_that_it_needs_is_refused(tmp_path: Path, part: str) -> None:
    rolling().save(tmp_path)
    path = tmp_path / CALIBRATION_FILE
    numbers = json.loads(path.read_bytes())
    left = {name: value for name, value in numbers.items() if not name.startswith(part)}
    assert len(left) < len(numbers)
    path.write_text(json.dumps(left))
    with pytest.raises(KeyError, match=part):
        Calibration.load(tmp_path)


def levelled(n: int, seed: int) -> Evidence:
    """Queries whose label is often unsure, and whose parent is right as often as is foretold."""
    generator = np.random.default_rng(seed)
    first = generator.beta(6, 1, n)
    parent = first + (1 - first) * generator.beta(5, 1, n)
    right = generator.random(n) < first
    of_parent = right | (generator.random(n) < (parent - first) / (1 - first))
    absent = np.arange(n) >= 0.8 * n
    first, parent = (np.where(absent, one * 0.4, one) for one in (first, parent))
    related = absent & (generator.random(n) < 0.5)
    return evidence(
        n,
        0,
        first_probabilities=first,
        no_match_probabilities=1 - parent,
        correct=right & ~absent,
        absent=absent,
        likeliest_probabilities=first,
        likeliest_correct=right & ~absent,
        clusters=np.arange(n),
        levels=LevelEvidence(parent[:, None], np.where(absent, related, of_parent)[:, None]),
    )


def promised(of: Evidence) -> Promises:
    return Promises(of, MANY, 0.05, 0.05, Recalibration(), 0.1, None, 0.1, ["genus"])


@pytest.mark.slow
def test_the_answers_of_a_level_keep_its_promise_by_themselves() -> None:
    """Those that no match was given to are the harder ones; a tenth of calibrations may fail."""
    fresh, exceeded, n_given = levelled(100_000, 10_000), 0, 0
    levels = not_none(fresh.levels)
    weight = np.where(fresh.absent, 0.05 / fresh.absent.sum(), 0.95 / (~fresh.absent).sum())
    for seed in range(60):
        promises = promised(levelled(600, seed))
        given = promises.level_threshold(0, 2)
        if math.isinf(given):
            continue
        n_given += 1
        left = fresh.first_probabilities < promises.threshold(2)
        rolled = left & (levels.probabilities[:, 0] >= given)
        error = np.average(~levels.correct[rolled, 0], weights=weight[rolled])
        exceeded += bool(error > 0.1)
    assert n_given > 40
    assert exceeded <= binom.ppf(0.999, n_given, 0.1)


def test_a_level_that_cannot_be_promised_says_why() -> None:
    few = levelled(24, 0)
    promise = promised(few).roll_ups[0][2]
    assert math.isinf(promise.threshold)
    assert "answers of the level genus cannot be promised" in not_none(promise.shortfall)


def test_a_level_without_evidence_of_absent_queries_gives_the_doubt_as_its_reason() -> None:
    of = replace(levelled(400, 0), absence="hidden_trained_labels")
    given = Promises(of, MANY, 0.05, 0.3, Recalibration(), 0.1, None, 0.1, ["genus"])
    promise = given.roll_ups[0][2]
    assert math.isinf(promise.threshold)
    assert given.doubt is not None
    assert promise.shortfall == given.doubt


def surest_first(n: int, wrong: int) -> Evidence:
    """Queries that are left over, the surest first, of which the one at ``wrong`` is wrong."""
    of_parent = np.linspace(0.97, 0.6, n)
    return evidence(
        n,
        0,
        first_probabilities=np.full(n, 0.4),
        no_match_probabilities=0.99 * (1 - of_parent),
        correct=np.zeros(n, dtype=bool),
        clusters=np.arange(n),
        levels=LevelEvidence(of_parent[:, None], (np.arange(n) != wrong)[:, None]),
    )


def test_an_error_among_the_surest_does_not_end_all_of_a_level() -> None:
    """Twenty and more that are all right show an error of 0.1; one of the first thirty is wrong."""
    promises = promised(surest_first(120, wrong=5))
    assert promises.level_threshold(0, 2) < 0.7


def test_where_tests_of_a_level_begin_is_foretold_whatever_was_right() -> None:
    stream = Stream.of(surest_first(120, 5).of_level(0), 0.05, 0.05, Recalibration(), 0.1)
    otherwise = replace(stream, wrong=1 - stream.wrong)
    assert stream.sequence(0.05)[0][0] == otherwise.sequence(0.05)[0][0]


@pytest.mark.parametrize(
    ("listed", "label"),
    [
        (retrieved(0.995, 0.995, 0.2, codes=(0, 1, 2)), "Felidae"),
        (retrieved(0.97, 0.2, 0.1, codes=(2, 0, 1)), "Canidae"),
    ],
    ids=["the last", "the first"],
)
def test_a_level_answers_from_its_threshold_on(
    monkeypatch: pytest.MonkeyPatch, listed: Retrieved, label: str
) -> None:
    """Whichever parent of the level it is."""

    def from_on(threshold: float) -> RollUp | None:
        limits = (math.inf, threshold)
        monkeypatch.setattr(Promises, "level_threshold", lambda _, level, __: limits[level])
        return decide(rolling(), query(), listed, TERMS).roll_up

    sure = not_none(from_on(0.0))
    assert (sure.level, sure.label) == ("family", label)
    assert from_on(sure.probability) == sure
    assert from_on(float(np.nextafter(sure.probability, 1))) is None


@pytest.mark.parametrize("allowed", [None, (True, True, True)])
def test_only_labels_of_the_list_roll_up(
    monkeypatch: pytest.MonkeyPatch, allowed: tuple[bool, ...] | None
) -> None:
    """The likeliest label of all lies beyond, where sums were calibrated without any."""
    classes: list[int] = []

    def level_threshold(_: Promises, __: int, size_class: int) -> float:
        classes.append(size_class)
        return 0.0

    monkeypatch.setattr(Promises, "level_threshold", level_threshold)
    listed = replace(retrieved(0.5, 0.3, 0.999, codes=(0, 2, 1), allowed=allowed), n_listed=2)
    known = replace(rolling(), label_classes=np.array([1, 0, 2], dtype=np.int8))
    decision = decide(known, query(), listed, TERMS)
    lion, wolf, tiger = not_none(decision.match_probabilities)
    assert tiger > lion > wolf
    rolled = not_none(decision.roll_up)
    assert rolled.label == "Panthera"
    assert rolled.probability == pytest.approx(lion)
    assert classes == [1]


def test_level_without_a_parent_of_the_label_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Promises, "level_threshold", lambda *_: 0.0)
    monkeypatch.setattr(Promises, "threshold", lambda *_: math.inf)
    rolled = not_none(decide(rolling(), query(), retrieved(0.9, codes=(2,)), TERMS).roll_up)
    assert (rolled.level, rolled.label) == ("family", "Canidae")


def test_a_parent_is_as_likely_as_those_of_its_labels_that_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Promises, "level_threshold", lambda *_: 0.0)
    monkeypatch.setattr(Promises, "threshold", lambda *_: math.inf)
    listed = retrieved(0.99, 0.9, 0.2, codes=(0, 1, 2), allowed=(True, False, True))
    rolled = not_none(decide(rolling(), query(), listed, TERMS).roll_up)
    free = decide(rolling(), query(), replace(listed, allowed=None), TERMS)
    lion, tiger, _ = not_none(free.match_probabilities)
    assert rolled.probability == pytest.approx(lion)
    assert not_none(free.roll_up).probability == pytest.approx(lion + tiger)


def test_what_is_answered_at_a_threshold_itself_is_not_left_to_coarser_levels() -> None:
    probabilities = np.array([0.4, 0.5, 0.6, 0.4, 0.4, 0.4])
    classes = np.array([0, 0, 0, 1, 1, 0])
    asked: list[list[int]] = []

    def promise(_: str, place: int, rows: Any) -> Any:
        asked.append(rows.tolist())
        return SimpleNamespace(threshold=(0.7, math.inf, 0.0)[place])

    of_level: Any = SimpleNamespace(
        probabilities=np.array([0.7, 0.9, 0.9, 0.9, 0.1, 0.6]), at_rows=np.flatnonzero
    )
    its: Any = SimpleNamespace(
        stream=SimpleNamespace(probabilities=probabilities),
        _thresholds=np.array([0.5, 0.5, 0.5]),
        _first_classes=np.zeros(6, dtype=int),
        _promise_of_level=promise,
    )
    Promises._rolled_up(its, ("genus", "family"), [of_level] * 2, classes.astype(np.int8))
    assert asked == [[0, 5], [3, 4], [], [5], [3, 4], []]
