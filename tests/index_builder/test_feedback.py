"""Feedback as it is kept, and what is learned from it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from typer.testing import CliRunner

from index_builder.calibration import corrected_by_feedback
from index_builder.commands.app import app
from index_builder.indexing import recalibrate
from index_builder.indexing.bundle_evidence import calibrate_bundle_texts
from model_store.bundles.bundle import open_bundle
from model_store.decision import Calibration, MatchDraw, fit_recalibration
from model_store.errors import CalibrationError, ConfigError
from model_store.feedback import Decided, FeedbackLog
from tests.support.decisions import said as decided

EARLIER = """
CREATE TABLE feedback (gallery TEXT NOT NULL, bundle TEXT NOT NULL, query_id TEXT NOT NULL,
  item_id TEXT NOT NULL, correct INTEGER NOT NULL, rank INTEGER NOT NULL,
  match_probability REAL NOT NULL, received_at REAL NOT NULL,
  PRIMARY KEY (bundle, query_id, item_id)) WITHOUT ROWID
"""


@pytest.fixture(scope="module")
def calibration(digits_bundle: Path) -> Calibration:
    fitted = open_bundle(digits_bundle, "cpu", threads=1).retriever.calibration
    assert fitted is not None
    return fitted


@pytest.fixture
def log(tmp_path: Path) -> FeedbackLog:
    return FeedbackLog(tmp_path / "feedback.sqlite3")


def said(number: int, log_odds: float, *, correct: bool, origin: str = "o") -> Decided:
    """Two pairs of each query."""
    return decided(
        f"query-{number // 2}",
        item=f"item-{number}",
        correct=correct,
        probability=0.123,  # nothing is fitted to it: it may have been corrected already
        log_odds=log_odds,
        origin=origin,
    )


def told(
    log: FeedbackLog, calibration: Calibration, n: int, slope: float, intercept: float
) -> NDArray[np.float64]:
    """Users for whom matches are true with these odds, not with those that were served."""
    generator = np.random.default_rng(0)
    log_odds = generator.normal(1.5, 2, n)
    correct = generator.uniform(size=n) < expit(slope * log_odds + intercept)
    for number in range(n):
        one = said(
            number,
            float(log_odds[number]),
            correct=bool(correct[number]),
            origin=calibration.match_fingerprint,
        )
        log.decide(one)
    return log_odds


def test_the_fit_is_at_a_minimum_of_its_loss() -> None:
    generator = np.random.default_rng(1)
    log_odds = generator.normal(0, 2, 80)
    correct = generator.uniform(size=80) < expit(0.4 * log_odds - 1)

    def loss(parameters: NDArray[np.float64]) -> float:
        probabilities = expit(np.exp(parameters[0]) * log_odds + parameters[1])
        of_truth = np.where(correct, probabilities, 1 - probabilities)
        prior = (parameters[0] / 0.5) ** 2 / 2 + parameters[1] ** 2 / 2
        return float(prior - np.log(of_truth).sum())

    best = minimize(loss, np.full(2, 0.3), method="BFGS").x
    got = fit_recalibration(log_odds, correct)
    np.testing.assert_allclose([np.log(got.slope), got.intercept], best, atol=1e-3)


def test_little_feedback_corrects_little_and_never_turns_the_order() -> None:
    got = fit_recalibration(np.array([3.0, -3.0]), np.array([False, True]))
    assert 0 < got.slope < 1
    none = fit_recalibration(np.zeros(0), np.zeros(0, dtype=bool))
    assert (none.slope, none.intercept) == (1, 0)


def test_probabilities_that_users_find_too_high_are_lowered(
    calibration: Calibration, log: FeedbackLog
) -> None:
    told(log, calibration, 400, slope=0.6, intercept=-1)
    corrected = corrected_by_feedback(calibration, log)
    assert corrected.feedback.slope == pytest.approx(0.6, abs=0.15)
    assert corrected.feedback.intercept == pytest.approx(-1, abs=0.35)
    report = corrected.report["feedback"]
    assert (report["n"], report["n_others"], report["applied"]) == (400, 0, True)
    assert report["log_loss_after"] < report["log_loss_before"] - 0.05
    # What was said of corrected probabilities corrects them no further.
    again = corrected_by_feedback(corrected, log)
    assert again.feedback == corrected.feedback


def test_true_probabilities_stay_as_they_are(calibration: Calibration, log: FeedbackLog) -> None:
    told(log, calibration, 120, slope=1, intercept=0)
    corrected = corrected_by_feedback(calibration, log)
    report = corrected.report["feedback"]
    if not report["applied"]:
        assert (corrected.feedback.slope, corrected.feedback.intercept) == (1, 0)
        assert report["log_loss_after"] >= report["log_loss_before"]
    assert corrected.feedback.slope == pytest.approx(1, abs=0.3)
    assert corrected.feedback.intercept == pytest.approx(0, abs=0.4)


def test_what_foretells_no_better_is_not_applied(
    calibration: Calibration, log: FeedbackLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(log, calibration, 200, slope=0.5, intercept=-1)
    monkeypatch.setattr(
        "index_builder.calibration.probabilities._cross_fitted", lambda said: 1.0 - said.correct
    )
    corrected = corrected_by_feedback(calibration, log)
    assert corrected.report["feedback"]["applied"] is False
    assert corrected.feedback == calibration.feedback


@pytest.mark.parametrize(
    ("n", "n_confirmed", "n_queries"), [(49, 25, 25), (60, 9, 30), (60, 51, 30), (60, 30, 4)]
)
def test_too_little_is_refused(
    calibration: Calibration, log: FeedbackLog, n: int, n_confirmed: int, n_queries: int
) -> None:
    origin = calibration.match_fingerprint
    for number in range(n):
        one = said(number, 0.5, correct=number < n_confirmed, origin=origin)
        log.decide(replace(one, query_id=f"query-{number % n_queries}"))
    with pytest.raises(CalibrationError, match=rf"{n} pairs of {n_queries} queries.*at least 50"):
        corrected_by_feedback(calibration, log)


def test_words_on_other_probabilities_are_left_aside(
    calibration: Calibration, log: FeedbackLog
) -> None:
    told(log, calibration, 100, slope=0.6, intercept=-1)
    for number in range(1000, 1030):
        log.decide(said(number, 4.0, correct=False, origin="another"))
    assert corrected_by_feedback(calibration, log).report["feedback"]["n_others"] == 30
    assert len(log.pairs("another").correct) == 30


@pytest.mark.parametrize(
    "other",
    [{"n_queries": 1}, {"assumed_absent": 0.123}, {"search": {}}, {"encoder_fingerprint": "0"}],
)
def test_probabilities_fitted_otherwise_are_others(
    calibration: Calibration, other: dict[str, Any]
) -> None:
    assert replace(calibration, **other).match_fingerprint != calibration.match_fingerprint


def test_a_pair_that_two_bundles_served_counts_once_with_the_last_word(log: FeedbackLog) -> None:
    log.decide(said(0, 1.0, correct=True))
    log.decide(replace(said(0, 1.0, correct=False), bundle="another"))
    pairs = log.pairs("o")
    np.testing.assert_array_equal(pairs.correct, [False])


def test_a_file_of_an_earlier_release_goes_on_and_teaches_nothing_of_before(
    log: FeedbackLog, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "feedback.sqlite3") as connection:
        connection.execute(EARLIER)
        connection.execute("INSERT INTO feedback VALUES ('g','b','q','i',1,1,0.5,0)")
    connection.close()
    assert (len(log.pairs("o").correct), log.pairs("o").n_others) == (0, 1)
    log.decide(said(3, 0.7, correct=True))
    pairs = log.pairs("o")
    np.testing.assert_array_equal(pairs.log_odds, [0.7])
    assert pairs.n_others == 1
    summary = log.summary("b")
    assert summary is not None
    assert summary.n == 2


def test_volunteered_pairs_do_not_tell_how_often_matches_are_right() -> None:
    """Wrong ones are reported five times as often: slope from all, intercept from drawn ones."""
    generator = np.random.default_rng(5)
    log_odds = generator.normal(1, 2, 12_000)
    correct = generator.uniform(size=len(log_odds)) < expit(0.7 * log_odds - 0.5)
    drawn = np.arange(len(log_odds)) < 1000
    chosen = drawn | (generator.uniform(size=len(log_odds)) < np.where(correct, 0.1, 0.5))
    told = log_odds[chosen], correct[chosen]
    alike = fit_recalibration(*told)
    told_apart = fit_recalibration(*told, ~drawn[chosen])
    assert abs(alike.intercept + 0.5) > 0.5
    assert told_apart.intercept == pytest.approx(-0.5, abs=0.2)
    assert told_apart.slope == pytest.approx(0.7, abs=0.05)


def test_the_log_tells_which_pairs_were_drawn(log: FeedbackLog) -> None:
    log.ask("b", [("query-0", "item-1", MatchDraw(0.1, 0.2, 0.05))])
    for number in range(3):
        log.decide(said(number, 0.5, correct=True))
    pairs = log.pairs("o")
    assert pairs.drawn.sum() == 1
    assert pairs.queries[pairs.drawn].tolist() == [0]


def test_fit_recalibration_with_weights_is_that_of_the_stream_that_was_drawn_from() -> None:
    """The truth is no logistic curve: fitted to doubtful draws alone it is another one."""
    generator = np.random.default_rng(7)
    log_odds = generator.normal(2, 3, 600_000)
    correct = generator.uniform(size=len(log_odds)) < expit(np.where(log_odds > 3, 3, log_odds))
    doubts = np.sqrt(expit(log_odds) * expit(-log_odds))
    probabilities = 0.05 * (0.5 + 0.5 * doubts / doubts.mean())
    chosen = generator.uniform(size=len(log_odds)) < probabilities
    weights = 1 / probabilities[chosen]
    truth = fit_recalibration(log_odds, correct)
    weighted = fit_recalibration(
        log_odds[chosen], correct[chosen], weights=weights / weights.mean()
    )
    plain = fit_recalibration(log_odds[chosen], correct[chosen])
    assert abs(weighted.slope - truth.slope) < 0.03
    assert abs(plain.slope - truth.slope) > 0.06, "so that the weights are needed"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none", "does not exist"), (".", "cannot be read: Is a directory"), ("text", "no SQLite")],
)
def test_what_is_no_feedback_file_is_refused(
    name: str, reason: str, digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no database, but longer than sixteen bytes")
    Path("in.csv").write_text("query_id,decision,item_id,label\n")
    kept, root = Path(name), digits_bundle.parent
    with pytest.raises(ConfigError, match=reason):
        recalibrate.correct_bundle(root, kept)
    with pytest.raises(ConfigError, match=reason):
        recalibrate.recalibrate_bundle(root, {}, kept)
    with pytest.raises(ConfigError, match=reason):
        calibrate_bundle_texts(root, tmp_path / "c.csv", {}, feedback=kept)
    commands = [["export", name, "x.csv", "--gallery", "g"]]
    if name != "none":  # an import makes the file
        commands.append(["import", name, "in.csv"])
    for command in commands:
        result = CliRunner().invoke(app, ["feedback", *command])
        assert isinstance(result.exception, ConfigError), command
        assert reason in str(result.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "text"]


def test_an_export_names_the_galleries_of_the_decisions(log: FeedbackLog, tmp_path: Path) -> None:
    command = ["feedback", "export", str(log.path), str(tmp_path / "x.csv"), "--gallery"]
    log.check()
    assert CliRunner().invoke(app, [*command, "nope"]).stdout == "0 decisions written\n"
    (tmp_path / "x.csv").unlink()
    log.decide(said(0, 1.0, correct=True))
    result = CliRunner().invoke(app, [*command, "nope"])
    assert isinstance(result.exception, ConfigError)
    assert "has no decisions on 'nope'; it has decisions on 'g'." in str(result.exception)
    assert not (tmp_path / "x.csv").exists()
