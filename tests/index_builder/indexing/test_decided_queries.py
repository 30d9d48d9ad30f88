"""Queries that were drawn at random and decided on are calibration queries."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index_builder.calibration.fit_again import BY_REVIEWED, ENOUGH_REVIEWED
from index_builder.calibration.kept_queries import UNSAID, with_decisions
from model_store.bundles.directory import current_id
from model_store.bundles.kept_queries import CalibrationInputs
from model_store.decision import Calibration
from model_store.encoder.contract import Embeddings
from model_store.feedback import (
    AnsweredQuery,
    Bounds,
    Case,
    CaseReason,
    Decided,
    DecisionKind,
    FeedbackLog,
    NewCase,
    ReviewQueue,
    drawn_queries,
)
from model_store.gallery import Delete, FaissGallery
from model_store.table import HalfRows
from tests.support.build_command import vouch_build
from tests.support.kept_worlds import (
    ENCODER,
    N_EACH,
    N_LABELS,
    calibrated,
    calibration,
    drawn,
    opened,
)
from tests.support.narrowing import not_none

pytestmark = pytest.mark.bundle


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of bundles with a calibrated gallery that keeps its queries."""
    return calibrated(tmp_path_factory.mktemp("kept"), np.empty(0, dtype=np.int64))


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundles"))


def reviewed(path: Path, n: int, spread: float = 0.0, first_label: int = 0) -> Path:
    """Write a feedback file with ``n`` queries, each decided rightly; they are spoilt by noise."""
    labels = np.random.default_rng(14).integers(first_label, N_LABELS, size=n)
    embeddings = drawn(labels, 15)
    noise = spread * np.random.default_rng(16).standard_normal(embeddings.mean.shape)
    keep_cases(path, labels, replace(embeddings, mean=(embeddings.mean + noise).astype(np.float32)))
    log = FeedbackLog(path)
    for number, label in enumerate(labels.tolist()):
        log.decide(decision(number, "that_item", f"item-{label * N_EACH:04d}"))
    assert len(drawn_queries(path, "g", ENCODER.fingerprint)) == n
    return path


def calibrated_with(root: Path, decisions: Path) -> Calibration:
    done = vouch_build("calibrate", str(root), "--decisions", str(decisions), cwd=root)
    assert done.returncode == 0, done.stderr
    return calibration(root / str(current_id(root)))


def n_with_a_match(calibration: Calibration) -> int:
    return int((calibration.evidence.true_classes > 0).sum())


def test_few_reviewed_queries_are_not_used(root: Path, tmp_path: Path) -> None:
    before = calibration(root / str(current_id(root)))
    path = reviewed(tmp_path / "feedback.sqlite3", ENOUGH_REVIEWED - 1)
    done = vouch_build("calibrate", str(root), "--decisions", str(path), cwd=root)
    assert done.returncode == 0, done.stderr
    assert "199 reviewed queries have a match, too few to be used: 200 are needed" in done.stderr
    after = calibration(root / str(current_id(root)))
    assert n_with_a_match(after) == n_with_a_match(before)
    assert BY_REVIEWED not in after.report


@pytest.mark.parametrize("by_items", [False, True])
def test_enough_reviewed_queries_are_the_evidence_alone(tmp_path: Path, by_items: bool) -> None:
    """Neither held-out images nor items stand beside them, also after the gallery has changed."""
    root = calibrated(tmp_path, np.empty(0, dtype=np.int64), by_items=by_items)
    path = reviewed(tmp_path / "feedback.sqlite3", 400)
    before = calibrated_with(root, path)
    live = opened(root)
    live.commit([Delete(f"item-{row:04d}") for row in range(1, N_LABELS * N_EACH, 3)])
    live.close()
    for fitted in (before, calibrated_with(root, path)):
        assert fitted.report[BY_REVIEWED]
        assert fitted.report["queries"] == "held_out_images"
        assert fitted.n_queries == n_with_a_match(fitted) == len(fitted.outlier_scores) == 400
        p_values = not_none(fitted.evidence.outlier_p_values)[~fitted.evidence.absent]
        assert np.sort(p_values) == pytest.approx(np.arange(1, 401) / 400)


def test_reviewed_queries_of_another_camera_bound_their_own_error(
    root: Path, tmp_path: Path
) -> None:
    before = calibration(root / str(current_id(root)))
    after = calibrated_with(root, reviewed(tmp_path / "feedback.sqlite3", 250, spread=0.09))
    assert before.promises().gives_matches
    assert not after.promises().gives_matches


def test_bounds_of_reviewed_queries_are_not_replaced_by_others(root: Path, tmp_path: Path) -> None:
    calibrated_with(root, reviewed(tmp_path / "feedback.sqlite3", ENOUGH_REVIEWED))
    before = current_id(root)
    done = vouch_build("calibrate", str(root), cwd=root)
    assert done.returncode == 1
    assert "vouch-build calibrate BUNDLES --decisions FILE" in " ".join(done.stderr.split())
    assert current_id(root) == before


def test_reviewed_queries_whose_labels_have_gone_are_too_few(root: Path, tmp_path: Path) -> None:
    path = reviewed(tmp_path / "feedback.sqlite3", ENOUGH_REVIEWED, first_label=12)
    live = opened(root)
    live.commit([Delete(f"item-{row:04d}") for row in range(12 * N_EACH, N_LABELS * N_EACH)])
    live.close()
    done = vouch_build("calibrate", str(root), "--decisions", str(path), cwd=root)
    assert done.returncode == 1
    assert "reviewed queries with a match; 200 are needed" in " ".join(done.stderr.split())


def test_decisions_on_what_a_reviewer_chose_are_none(tmp_path: Path) -> None:
    """And of those that were drawn, the oldest in a row that nearly all are decided on."""
    path = tmp_path / "feedback.sqlite3"
    labels = np.arange(40) % N_LABELS
    keep_cases(path, labels, drawn(labels, 16), n_chosen=10)
    log = FeedbackLog(path)
    for number in [*range(25), 35]:
        log.decide(decision(number, "none_of_these", None))
    found = drawn_queries(path, "g", ENCODER.fingerprint)
    assert [one.embedded.query_id for one in found] == [f"{n:064x}" for n in range(10, 25)]
    assert drawn_queries(path, "another", ENCODER.fingerprint) == []


def test_drawn_queries_are_those_drawn_evenly(tmp_path: Path) -> None:
    """Doubtful queries are drawn more often: an exact bound needs queries that are drawn alike."""
    path = tmp_path / "feedback.sqlite3"
    labels = np.arange(40) % N_LABELS
    keep_cases(path, labels, drawn(labels, 16), n_even=4)
    for number in range(40):
        FeedbackLog(path).decide(decision(number, "none_of_these", None))
    found = drawn_queries(path, "g", ENCODER.fingerprint)
    assert [one.embedded.query_id for one in found] == [f"{n:064x}" for n in range(0, 40, 4)]


@pytest.mark.parametrize(
    ("said", "truth"),
    [
        (("this_item", "item-0012"), "label 1"),
        (("that_item", "gone"), "label 3"),
        (("none_of_these", None), None),
        (("new", None), None),
        (("not_this_item", "item-0012"), UNSAID),
    ],
)
def test_what_a_decision_says_is_true_of_its_query(
    root: Path, tmp_path: Path, said: tuple[DecisionKind, str | None], truth: str | None
) -> None:
    directory = root / str(current_id(root))
    kept = not_none(CalibrationInputs.load(directory))
    path = tmp_path / "feedback.sqlite3"
    keep_cases(path, np.array([1]), drawn(np.array([1]), 17))
    FeedbackLog(path).decide(replace(decision(0, *said), label="label 3"))
    found = drawn_queries(path, "g", ENCODER.fingerprint)
    more = with_decisions(kept, found, FaissGallery(directory))
    assert more.matched.labels[len(kept.matched) :] == (() if truth is None else (truth,))
    assert len(more.withheld) == (truth is None)


def keep_cases(
    path: Path, labels: np.ndarray, embeddings: Embeddings, n_chosen: int = 0, n_even: int = 1
) -> None:
    """Keep queries for review: the first few for what they are, the others drawn at random.

    Every ``n_even``-th of them is of the draws that are even.
    """
    parts = (embeddings.mean, embeddings.variance, embeddings.features)
    rows = zip(*(HalfRows.of(part).to_bytes() for part in parts), strict=True)
    queue = ReviewQueue(path, Bounds(1e6, 10_000, 2**30))
    cases = []
    for number, row in enumerate(rows):
        query, chosen = f"{number:064x}", number < n_chosen
        reason: CaseReason = "ambiguous" if chosen else "random"
        found, judged = (), (None, None, None)
        case = Case(
            *("g", ENCODER.fingerprint, "b", query, reason, not chosen, "ambiguous", found),
            *(*judged, 1, 1, time.time()),
            drawn_evenly=not chosen and number % n_even == 0,
        )
        cases.append(NewCase(case, AnsweredQuery(query, *row), None))
    assert queue.add(cases)["kept"] == len(labels)


def decision(number: int, kind: DecisionKind, item: str | None) -> Decided:
    return Decided("g", "b", f"{number:064x}", kind, item, None, "ann", None, (), time.time())
