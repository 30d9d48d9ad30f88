from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logit

from model_store.decision.absent_share import SHARES, ServedShare, ShareReference
from model_store.decision.probabilities import choice_probabilities, prior_shift, shifted
from tests.support.calibration_evidence import evidence
from tests.support.narrowing import not_none

Drawn = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("assumed", "expected"), [(0.05, 0.5), (0.05, 0.01), (0.4, 0.9), (0.4, 0.5), (0.5, 0.4)]
)
def test_the_shift_is_bayes_rule(assumed: float, expected: float) -> None:
    """Three labels and none, with any likelihoods: by hand, from one prior to another."""
    likelihoods = RNG.uniform(0.1, 2, 4)

    def posterior(absent: float) -> NDArray[np.float64]:
        prior = np.append(np.full(3, (1 - absent) / 3), absent)
        found: NDArray[np.float64] = likelihoods * prior / (likelihoods @ prior)
        return found

    before, after = posterior(assumed), posterior(expected)
    shift = prior_shift(assumed, expected)
    np.testing.assert_allclose(shifted(before[:3], before[3], shift), after[:3])
    log_odds = np.log(before[:3] / before[3])
    np.testing.assert_allclose(choice_probabilities(log_odds + shift), after[:3])


def test_without_a_shift_probabilities_are_what_they_were() -> None:
    probabilities = RNG.uniform(size=5)
    assert shifted(probabilities, 1 - probabilities, 0.0) is probabilities
    nearly = shifted(probabilities, 1 - probabilities, 1e-12)
    np.testing.assert_allclose(nearly, probabilities, rtol=1e-9)


def test_counts_of_another_histogram_are_refused() -> None:
    with pytest.raises(ValueError, match="wanted"):
        ServedShare(np.zeros(3))


def test_certain_probabilities_survive_the_largest_shift() -> None:
    for shift in (-800.0, 800.0):
        moved = shifted(np.array([1.0, 0.0]), np.array([0.0, 1.0]), shift)
        np.testing.assert_array_equal(moved, [1, 0])


def draw(n: int, seed: int, share: float = 0.0, n_labels: int = 0) -> Drawn:
    """Draw P(no match) at an assumed share of 5 % of n queries, of which a share is absent.

    Absent labels differ: the model is right of their average only.

    Parameters
    ----------
    n_labels : labels of absent queries; 0 for a label of its own for each.
    """
    generator = np.random.default_rng(seed)
    absent = generator.uniform(size=n) < share
    labels = generator.integers(n_labels, size=n) if n_labels else np.arange(n)
    effects = 0.6 * generator.standard_normal(n_labels or n)
    score = generator.standard_normal(n) + (2.0 + effects[labels]) * absent
    return expit(2 * score - 2 + logit(0.05)), absent, labels  # log likelihood ratio 2 s - 2


def reference(seed: int, n_labels: int = 30) -> ShareReference:
    """The reference of 300 matched queries, and of ten absent ones of each label."""
    present, _, _ = draw(300, seed)
    absent, _, labels = draw(10 * n_labels, seed + 1, 1.0, n_labels)
    of = evidence(
        300,
        len(absent),
        no_match_probabilities=np.r_[present, absent],
        clusters=np.r_[np.arange(300), 300 + labels],
    )
    return ShareReference(of, 0.05)


def served(no_match: NDArray[np.float64]) -> ServedShare:
    counted = ServedShare()
    for value in no_match.tolist():
        counted.observe(value)
    return counted


@pytest.mark.parametrize("n_labels", [5, 30])
@pytest.mark.parametrize("share", [0.0225, 0.05, 0.2, 0.5, 0.9])
def test_the_interval_covers_the_share_of_a_stream(share: float, n_labels: int) -> None:
    """Each time with another calibration: its absent labels are not those of the stream."""
    inside, values = 0, []
    for seed in range(40):
        found = reference(3 * seed, n_labels).estimate(served(draw(500, 3 * seed + 2, share)[0]))
        assert found is not None
        assert found.lower <= found.value <= found.upper
        inside += found.lower <= share <= found.upper
        values.append(found.value)
    assert np.mean(values) == pytest.approx(share, abs=0.04)
    assert inside >= 36


def test_the_estimate_is_right_where_the_probabilities_are_not() -> None:
    """Both groups of calibration queries show by how much P(no match) is too high."""
    present, (absent, _, labels) = draw(300, 0)[0], draw(300, 1, 1.0, 30)
    stream = draw(2000, 2, 0.3)[0]
    found = []
    for by in (0.0, 1.5):
        moved = [expit(logit(one) + by) for one in (present, absent, stream)]
        of = evidence(
            300,
            300,
            no_match_probabilities=np.r_[moved[0], moved[1]],
            clusters=np.r_[np.arange(300), 300 + labels],
        )
        found.append(not_none(ShareReference(of, 0.05).estimate(served(moved[2]))))
    assert found[1].value == pytest.approx(found[0].value, abs=0.03)


def test_queries_of_one_absent_label_exclude_no_share() -> None:
    found = not_none(reference(0, 1).estimate(served(draw(500, 2, 0.3)[0])))
    assert (found.lower, found.upper) == (0, 1)


def test_a_stream_without_absent_queries_promises_nothing_of_the_next() -> None:
    found = not_none(reference(0).estimate(served(draw(500, 2)[0])))
    assert found.lower == 0
    assert found.upper < 0.15


def test_many_clear_queries_leave_the_share_between_two_steps() -> None:
    """The interval is narrower than a step of `SHARES` or two."""

    def clear(n: int, share: float, seed: int) -> NDArray[np.float64]:
        generator = np.random.default_rng(seed)
        return expit(generator.normal(np.where(generator.uniform(size=n) < share, 8, -8)))

    no_match = np.r_[clear(5_000, 0, 0), clear(2_000, 1, 1)]
    of = ShareReference(
        evidence(5_000, 2_000, no_match_probabilities=no_match, clusters=np.arange(7_000)), 0.05
    )
    found = [not_none(of.estimate(served(clear(5_000, 0.0225, seed)))) for seed in range(2, 42)]
    assert sum(one.lower <= 0.0225 <= one.upper for one in found) >= 36


def test_a_stream_stranger_than_absent_queries_has_the_largest_share() -> None:
    found = not_none(reference(0).estimate(served(np.full(500, 1.0))))
    assert found.value == found.lower == SHARES[-1]
    assert found.upper == 1


def test_a_stream_with_easier_matches_has_no_estimate() -> None:
    """Else a third of absent queries among them would look like none."""
    assert reference(0).estimate(served(np.full(500, 1e-6))) is None


def test_a_hundred_queries_are_enough_for_an_estimate() -> None:
    of = reference(0)
    assert of.estimate(served(np.full(99, 0.5))) is None
    assert of.estimate(served(np.full(102, 0.5))) is not None


def test_old_queries_are_forgotten() -> None:
    counted, of = served(draw(1000, 3, 0.4)[0]), reference(0)
    for value in draw(20_000, 4, 0.02)[0].tolist():
        counted.observe(value)
    later = not_none(of.estimate(counted))
    assert later.value < 0.06
    assert counted.counts.sum() <= ServedShare.memory
    assert of.estimate(ServedShare(counted.counts.copy())) == later


@pytest.mark.parametrize(("no_match", "place"), [(0.0, 0), (1e-12, 0), (1 - 1e-12, -1), (1.0, -1)])
def test_what_is_certain_counts_at_the_ends(no_match: float, place: int) -> None:
    counts = served(np.array([no_match])).counts
    assert counts[place] == counts.sum() == 1
