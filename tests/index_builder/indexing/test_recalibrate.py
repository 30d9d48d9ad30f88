"""A bundle is calibrated again from what it keeps, after its gallery has changed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from index_builder.calibration.calibrate import observe_gallery
from index_builder.calibration.fit_again import Refit, fit_again
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.kept_queries import as_vectors, kept_of
from index_builder.calibration.retrieval import BY_LABEL, TruthRule
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.bundle_evidence import _keep
from index_builder.indexing.recalibrate import calibration_of, recalibrate_bundle
from model_store.bundles.compaction import RENAMED_LABELS
from model_store.bundles.directory import bundle_directory, current_id
from model_store.bundles.kept_queries import (
    BUILD_QUERIES_FILE,
    KEPT_QUERIES_FILE,
    CalibrationInputs,
    ItemFeatures,
)
from model_store.bundles.manifest import EVALUATION_FILE, read_manifest
from model_store.decision import SIZE_CLASSES, Hierarchy, Recalibration
from model_store.decision.calibration import staleness
from model_store.errors import CalibrationError
from model_store.feedback import (
    Decided,
    DecisionKind,
    FeedbackLog,
    Pair,
)
from model_store.gallery import (
    ChangesFile,
    Delete,
    Edit,
    FaissGallery,
    LiveGallery,
    NewItem,
    Upsert,
    Vector,
    write_faiss_gallery,
)
from model_store.retriever import Retriever
from tests.support.build_command import vouch_build
from tests.support.kept_worlds import (
    ENCODER,
    ITEMS,
    N_EACH,
    N_LABELS,
    N_NEW,
    OF_ITEMS,
    OF_QUERIES,
    PICTURE,
    QUERIES,
    asked,
    calibrated,
    calibration,
    compacted,
    drawn,
    images,
    opened,
    put,
    strangers,
)
from tests.support.narrowing import not_none

pytestmark = pytest.mark.bundle


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of bundles with a calibrated gallery that keeps its queries."""
    return calibrated(tmp_path_factory.mktemp("kept"), np.empty(0, dtype=np.int64))


@pytest.fixture(scope="module")
def made_with_strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, calibrated with queries of labels that it does not have."""
    absent_labels = N_LABELS + np.repeat(np.arange(N_NEW), 15)
    return calibrated(tmp_path_factory.mktemp("strangers"), absent_labels)


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundles"))


def test_fitted_again_to_the_same_gallery_it_says_the_same(root: Path) -> None:
    directory = root / str(current_id(root))
    before = replace(calibration(directory), feedback=Recalibration(0.5, -1.0, 60))
    config = CalibrationConfig(max_error=0.1)
    refit = fit_again(directory, FaissGallery(directory), before, config)
    assert refit.predicts_as_well
    again = refit.calibration
    assert again.n_queries == before.n_queries == len(OF_QUERIES)
    np.testing.assert_allclose(
        again.evidence.first_probabilities, before.evidence.first_probabilities, atol=0.02
    )
    assert again.detector.n_averaged == before.detector.n_averaged
    assert again.feedback == before.feedback  # what users said of the stream still holds


def test_half_of_the_items_replaced_and_new_labels_put_end_its_staleness(root: Path) -> None:
    """No image is read: there is none. The new items are queries left out of their own lists."""
    live = opened(root)
    gone = [Delete(f"item-{number:04d}") for number in range(0, len(OF_ITEMS), 2)]
    new = np.concatenate([OF_ITEMS[::2], N_LABELS + np.repeat(np.arange(N_NEW), N_EACH)])
    live.commit([*put(new, 3), *gone])
    before = calibration(root / str(current_id(root)))
    assert "calibrate BUNDLES" in str(staleness(before, live.snapshot()))
    live.close()
    directory = compacted(root, calibrated=True)
    after = calibration(directory)
    assert staleness(after, FaissGallery(directory)) is None
    report = after.report
    assert report["n_matched"] == len(OF_QUERIES)
    assert report["n_leave_one_out"] > len(OF_QUERIES)
    assert after.n_matched == report["n_matched"] + report["n_leave_one_out"]
    assert len(after.outlier_scores) > after.n_queries, "what is ordinary, new items say too"
    manifest = read_manifest(directory)
    assert manifest.calibration is not None
    assert manifest.calibration["report"]["n_leave_one_out"] == report["n_leave_one_out"]
    assert manifest.calibration["n_queries"] == after.n_matched
    kept = ItemFeatures.load(directory)
    assert kept is not None
    assert kept.was_put.sum() == len(new)
    # Later changes count from here on.
    live = opened(root)
    live.commit(put(np.array([0, 1]), 4, "late"))
    assert staleness(after, live.snapshot()) is None
    live.close()


def test_new_items_are_no_queries_beside_queries_of_users(root: Path) -> None:
    """Photographs of users can be harder than items, which would make bounds too low."""
    live = opened(root)
    gone = [Delete(f"item-{number:04d}") for number in range(0, len(OF_ITEMS), 2)]
    live.commit([*put(OF_ITEMS[::2], 3), *gone])
    live.close()
    directory = compacted(root, calibrated=False)
    assert not_none(ItemFeatures.load(directory)).was_put.any()
    gallery, before = FaissGallery(directory), calibration(directory)
    own = images("own", OF_QUERIES, drawn(OF_QUERIES, 20))
    none = own.at([])
    known = ENCODER, gallery, none, QuerySet(own, none, None), 0
    _keep(GalleryQueries(*known, are_views=False, unseen=False), directory, before)
    after = fit_again(directory, gallery, before, CalibrationConfig()).calibration
    assert after.report["n_leave_one_out"] == 0
    assert after.n_matched == len(after.outlier_scores) == len(OF_QUERIES)


def test_compacted_first_and_calibrated_later_is_the_same(root: Path, tmp_path: Path) -> None:
    """As a service compacts, which cannot fit anything: what is needed goes along."""
    other = Path(shutil.copytree(root, tmp_path / "other"))
    gone = [Delete(f"item-{number:04d}") for number in range(40)]
    for place in (root, other):
        live = opened(place)
        live.commit([*put(OF_ITEMS[:60], 5), *gone])
        live.close()
    at_once = calibration(compacted(root, calibrated=True))
    compacted(other, calibrated=False)
    later = calibration(compacted(other, calibrated=True))
    np.testing.assert_allclose(
        at_once.evidence.first_probabilities, later.evidence.first_probabilities, atol=1e-3
    )
    assert at_once.search == later.search


def test_queries_whose_label_has_gone_have_no_match_any_more(root: Path) -> None:
    live = opened(root)
    live.commit([Delete(f"item-{number:04d}") for number in range(5 * N_EACH)])
    live.close()
    after = calibration(compacted(root, calibrated=True))
    assert after.report["n_matched"] == (N_LABELS - 5) * 6


def test_where_labels_have_parents_more_items_are_queries(root: Path) -> None:
    """What is promised of parents rests on what labels leave over."""
    gallery = FaissGallery(root / str(current_id(root)))
    parents = Hierarchy.of(["half"], {name: [name[-1]] for name in gallery.labels})
    asked_of = images("query", OF_QUERIES, QUERIES)
    queries = QuerySet(asked_of, asked_of.at([]), None)
    parts = ENCODER, gallery, images("item", OF_ITEMS, ITEMS), queries, 0
    n_left_out = []
    for rule in (BY_LABEL, TruthRule(parents)):
        enough = len(OF_QUERIES) + 5
        inputs = GalleryQueries(*parts, are_views=False, unseen=True, enough=enough, rule=rule)
        _, observed = observe_gallery(inputs)
        n_left_out.append(len(not_none(observed.item_rows)))
    assert n_left_out == [5, len(OF_ITEMS)]


def test_what_was_enrolled_under_another_name_is_a_match_from_then_on(
    made_with_strangers: Path, tmp_path: Path
) -> None:
    """Calibration had queries of it that matched nothing; by now they might, and nobody knows."""
    root = Path(shutil.copytree(made_with_strangers, tmp_path / "bundles"))
    before = calibration(root / str(current_id(root)))
    of_kind, known = drawn(np.repeat(N_LABELS, 40), 10), drawn(OF_QUERIES, 11)
    live = opened(root)
    others = strangers(n_labels=100, n_each=6, seed=12)
    n_known = asked(live.snapshot(), before, known).count("match")
    named = put(np.repeat(N_LABELS, 20), 9)
    live.commit([replace(one, item=replace(one.item, label="given a name")) for one in named])
    assert asked(live.snapshot(), before, of_kind).count("match") == 0
    live.close()
    directory = compacted(root, calibrated=True)
    gallery, after = FaissGallery(directory), calibration(directory)
    assert asked(gallery, after, of_kind).count("match") > 20
    assert asked(gallery, after, known).count("match") > 2 / 3 * n_known
    assert after.report["absence"] == "hidden_labels", "too few labels are left without an item"
    assert after.evidence.rivals == pytest.approx((N_LABELS + 1) / N_LABELS)
    # Other strangers: the error among matches keeps the bound of the calibration, 0.1.
    matched = asked(gallery, after, known).count("match") / len(known)
    matched_strangers = asked(gallery, after, others).count("match") / len(others)
    share = after.default_share
    wrong = share * matched_strangers
    assert wrong / (wrong + (1 - share) * matched) < 0.1


def test_a_new_label_leaves_the_promises_of_others_as_they_are(root: Path) -> None:
    """Labels are sorted when a gallery is compacted, and their codes change."""
    live = opened(root)
    (write,) = put(np.array([0]), 13)
    live.commit([replace(write, item=replace(write.item, label="label 1.5"))])
    assert calibration(root / str(current_id(root))).n_new_labels(len(live.snapshot().labels)) == 1
    live.close()
    directory = compacted(root, calibrated=False)
    labels = FaissGallery(directory).labels
    after = calibration(directory)
    assert labels.index("label 1.5") < len(labels) - 1
    classes = after.classes_of(np.arange(len(labels), dtype=np.int32))
    promised = [SIZE_CLASSES[code] for code in classes]
    assert promised == ["one" if label == "label 1.5" else "many" for label in labels]
    assert after.n_new_labels(len(labels)) == 1, "nobody has learned it yet"
    assert after.n_new_labels(len(labels) + 1) == 2
    learned = compacted(root, calibrated=True)
    assert calibration(learned).n_new_labels(len(labels)) == 0


def test_an_item_that_was_replaced_is_known_by_what_it_shows_now(root: Path) -> None:
    live = opened(root)
    (write,) = put(np.array([5]), 6)
    replaced = Upsert(replace(write.item, id="item-0000"), write.vector)
    live.commit([replaced])
    kept = ItemFeatures.load(root / str(current_id(root)))
    assert kept is not None
    updated = kept.updated(live.snapshot())
    place = updated.ids.index("item-0000")
    assert updated.was_put[place]
    features = write.vector.features
    assert features is not None
    np.testing.assert_allclose(updated.features.whole()[place], features, atol=0.01)
    live.close()


def test_refit_after_a_label_is_renamed_keeps_its_queries_matched(root: Path) -> None:
    """Stored queries have the old label; in a compaction without a refit, its new name is kept."""
    directory = root / str(current_id(root))
    before = asked(FaissGallery(directory), calibration(directory), QUERIES)
    assert "match" in before
    live = opened(root)
    renamed = [f"item-{place:04d}" for place in np.flatnonzero(OF_ITEMS == 3)]
    live.commit([Edit(item_id, {"label": "first name"}) for item_id in renamed])
    live.close()
    manifest = read_manifest(compacted(root, calibrated=False))
    assert manifest.gallery[RENAMED_LABELS] == {"label 3": "first name"}
    live = opened(root)
    live.commit([Edit(item_id, {"label": "name"}) for item_id in renamed])
    live.close()
    directory = compacted(root, calibrated=True)
    wanted = {"label 3": "name", "first name": "name"}
    assert read_manifest(directory).gallery[RENAMED_LABELS] == wanted
    after = calibration(directory)
    assert after.report["n_matched"] == len(OF_QUERIES)
    assert after.n_new_labels(len(FaissGallery(directory).labels)) == 0
    now = asked(FaissGallery(directory), after, QUERIES)
    assert abs(now.count("match") - before.count("match")) <= 3
    kept = not_none(ItemFeatures.load(directory))
    assert len(kept) == len(OF_ITEMS), "an edited item keeps its features"
    assert not kept.was_put.any()


def test_label_that_was_edited_back_is_not_a_new_label(root: Path) -> None:
    live = opened(root)
    fitted = calibration(root / str(current_id(root)))
    for label, n_new in (("typo", 1), ("label 0", 0)):
        live.commit([Edit("item-0000", {"label": label})])
        retriever = Retriever(ENCODER, live.snapshot(), fitted)
        assert retriever.n_new_labels == n_new
        assert retriever.has_other_labels == (n_new > 0)
    live.close()


def test_label_of_an_item_that_is_a_query_is_its_edited_label(tmp_path: Path) -> None:
    absent_labels = N_LABELS + np.repeat(np.arange(N_NEW), 15)
    root = calibrated(tmp_path, absent_labels, by_items=True)
    live = opened(root)
    live.commit([Edit("item-0000", {"label": "label 1"}), Edit("item-0001", {"label": None})])
    kept = not_none(CalibrationInputs.load(root / str(current_id(root))))
    labels = dict(zip(kept.matched.ids, kept.matched.labels, strict=True))
    now = kept.relabelled(live.snapshot(), live.snapshot().renamed_labels()).matched
    wanted = {**labels, "item-0000": "label 1"}
    assert dict(zip(now.ids, now.labels, strict=True)) == wanted
    live.close()


def test_views_of_items_get_the_labels_that_were_given_later(tmp_path: Path) -> None:
    """A gallery without labels is calibrated with views; the label of a view is its item's id."""
    items = [NewItem(f"item-{n}", None, {}, PICTURE) for n in range(4)]
    write_faiss_gallery(tmp_path, ITEMS.at(np.arange(4)), items, "e")
    live = LiveGallery(
        FaissGallery(tmp_path), ChangesFile(tmp_path / "changes" / "b.sqlite", "b", "e")
    )
    views = ITEMS.at(np.array([2, 1, 0]))
    ids, of_items = ("view-a", "view-b", "view-c"), ("item-2", "item-1", "item-0")
    matched = kept_of(as_vectors(ids, of_items, of_items, None, views), views)
    nothing = matched.at(np.array([], dtype=np.int64))
    kept = CalibrationInputs(matched, nothing, are_views=True, unseen=False, seed=0)
    assert kept.relabelled(live.snapshot(), {}).matched.labels == of_items
    live.commit([Edit("item-0", {"label": "x"}), Edit("item-2", {"label": "y"})])
    now = kept.relabelled(live.snapshot(), {}).matched
    assert (now.ids, now.labels) == (("view-a", "view-c"), ("y", "x"))
    np.testing.assert_array_equal(now.mean.whole(), matched.mean.whole()[[0, 2]])
    live.close()


def test_a_worse_one_is_not_published(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = root / str(current_id(root))
    before = calibration(directory)

    def worse(*_: object) -> Refit:
        return Refit(before, loss_before=0.2, loss_after=0.3, standard_error=0.05)

    monkeypatch.setattr("index_builder.indexing.recalibrate.fit_again", worse)
    gallery, manifest = FaissGallery(directory), read_manifest(directory)
    with pytest.raises(CalibrationError, match=r"worse \(log loss 0\.3000, before 0\.2000\)"):
        calibration_of(before, {}, must=True)(gallery, directory, manifest)
    assert calibration_of(before, {})(gallery, directory, manifest) is manifest
    assert "is unchanged" in " ".join(capsys.readouterr().err.split())


def test_a_bundle_that_keeps_nothing_says_what_to_do(root: Path) -> None:
    directory = root / str(current_id(root))
    before = calibration(directory)
    (directory / KEPT_QUERIES_FILE).unlink()
    with pytest.raises(CalibrationError, match="calibrate BUNDLES --queries FILE"):
        fit_again(directory, FaissGallery(directory), before, CalibrationConfig())


def test_by_the_command_after_changes(root: Path) -> None:
    """With BUNDLES alone it is fitted again; another promise may be named."""
    live = opened(root)
    live.commit(put(OF_ITEMS[:60], 7))
    live.close()
    done = vouch_build("calibrate", str(root), "--max-error", "0.2", cwd=root)
    assert done.returncode == 0, done.stderr
    directory = root / str(current_id(root))
    assert done.stdout.strip().endswith(str(directory))
    after = calibration(directory)
    assert after.max_error == 0.2
    assert staleness(after, opened(root).snapshot()) is None


def test_new_calibration_leaves_out_the_evaluation_of_the_previous_one(
    built_digits: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(built_digits / "bundles", tmp_path / "bundles"))
    before = bundle_directory(root, not_none(current_id(root)))
    assert (before / EVALUATION_FILE).exists()
    after = recalibrate_bundle(root, {"max_error": 0.1})
    assert not (after / EVALUATION_FILE).exists()
    assert read_manifest(after).metrics is None


def test_decisions_correct_a_bundle_and_can_be_taken_back(root: Path, tmp_path: Path) -> None:
    """Only where they foretell what they have not seen better; else nothing is published."""
    before = root / str(current_id(root))
    log = FeedbackLog(tmp_path / "feedback.sqlite3")
    generator = np.random.default_rng(0)
    fingerprint = calibration(before).match_fingerprint
    said = []
    for number in range(120):
        log_odds = float(generator.normal(1.5, 1.5))
        right = bool(generator.random() < expit(0.6 * log_odds - 1))
        pair = Pair("item", right, 1, 0.5, log_odds, fingerprint)
        kind: DecisionKind = "this_item" if right else "not_this_item"
        query = f"{number:064x}"
        said.append(Decided("g", before.name, query, kind, "item", None, None, None, (pair,), 0.0))
    assert log.bring(said) == len(said)
    done = vouch_build("calibrate", str(root), "--feedback", str(log.path), cwd=root)
    assert done.returncode == 0, done.stderr
    corrected = calibration(root / str(current_id(root))).feedback
    assert corrected.intercept < -0.5
    assert vouch_build("rollback", str(root), cwd=root).returncode == 0
    assert current_id(root) == before.name
    few = FeedbackLog(tmp_path / "few.sqlite3")
    few.bring(said[:20])
    done = vouch_build("calibrate", str(root), "--feedback", str(few.path), cwd=root)
    assert done.returncode != 0
    assert "Users decided on 20 pairs" in " ".join(done.stderr.split())
    assert current_id(root) == before.name


@pytest.mark.parametrize("is_calibrated", [True, False])
def test_own_queries_do_not_replace_the_queries_of_the_build(
    tmp_path: Path, *, is_calibrated: bool
) -> None:
    """P(same) needs to know which labels the encoder was trained on; see `Grouping.of_bundle`."""
    root = calibrated(tmp_path, np.empty(0, dtype=np.int64), by_items=True)
    directory = root / str(current_id(root))
    build = not_none(CalibrationInputs.load(directory))
    if not is_calibrated:
        (directory / KEPT_QUERIES_FILE).unlink()
    before = calibration(directory) if is_calibrated else None
    own = images("own", OF_QUERIES, QUERIES)
    none = own.at([])
    for _ in range(2):
        known = ENCODER, FaissGallery(directory), none, QuerySet(own, none, None), 0
        _keep(GalleryQueries(*known, are_views=False, unseen=False), directory, before)
        before = calibration(directory)
    assert not_none(CalibrationInputs.load(directory)).matched.ids == own.ids
    kept = not_none(CalibrationInputs.load(directory, BUILD_QUERIES_FILE))
    if is_calibrated:
        assert kept.matched.ids == build.matched.ids
        assert kept.unlabelled is not None
    else:
        assert (len(kept.matched), kept.unseen) == (0, True)


def test_queries_that_became_items_are_left_out(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(made, tmp_path / "bundles"))
    live = opened(root)
    live.commit(
        [
            Upsert(
                NewItem(f"asked-{row}", f"label {OF_QUERIES[row]}", {}, PICTURE),
                Vector(QUERIES.mean[row], QUERIES.variance[row], QUERIES.features[row]),
            )
            for row in range(10)
        ]
    )
    live.close()
    before = calibration(root / str(current_id(root)))
    after = calibration(compacted(root, calibrated=True))
    assert "left out: 10 queries that are equal to an item" in capsys.readouterr().err
    assert after.n_queries == before.n_queries - 10
