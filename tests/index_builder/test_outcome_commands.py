"""Every build ends with its outcome: in sentences, as JSON, and checked before it is published."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from index_builder.commands import outcome as outcome_module
from index_builder.commands.outcome import OutcomeReport
from index_builder.progress import console
from model_store.bundles.directory import current_id, locate
from model_store.decision import Calibration, outcome_of
from model_store.decision.outcome import _line
from model_store.errors import RequirementNotMet
from model_store.records import GalleryOutcome
from tests.support.build_command import Done, vouch_build
from tests.support.calibration_evidence import outcome
from tests.support.collection_files import write_drawings

pytestmark = pytest.mark.bundle

N_IMAGES = 320


@pytest.fixture(scope="module")
def place(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with drawings."""
    place = tmp_path_factory.mktemp("outcomes")
    (place / "drawn").mkdir()
    write_drawings(place / "drawn", N_IMAGES)
    return place


@pytest.fixture(scope="module")
def indexed(place: Path, digits_bundle: Path) -> Done:
    """How indexing the drawings ended."""
    return index(place, digits_bundle)


def index(place: Path, encoder: Path, *options: str) -> Done:
    command = ["index", "drawn", "--encoder", str(encoder), "--calibrate", *options]
    return vouch_build(*command, cwd=place)


def outcome_in(root: Path) -> GalleryOutcome:
    return outcome_of(Calibration.load(locate(root)))


def test_index_ends_with_its_outcome(place: Path, indexed: Done) -> None:
    assert indexed.returncode == 0, indexed.stderr
    sentences = outcome_in(place / "bundles" / "drawn").sentences()
    *_, table, serve = lines = indexed.stderr.splitlines()
    assert lines[-2 - len(sentences) : -2] == sentences
    assert table == "All numbers: runs/drawn/index/calibration.md"
    assert serve.startswith("Next: vouch-serve")
    assert (
        "| cross fitted: recall at 1 | "
        in (place / table.removeprefix("All numbers: ")).read_text()
    )
    assert indexed.stdout == f"bundles/drawn/{current_id(place / 'bundles' / 'drawn')}\n"


def test_json_is_the_only_output_on_stdout(place: Path, indexed: Done) -> None:
    root = place / "bundles" / "drawn"
    done = vouch_build("calibrate", str(root), "--max-error", "0.2", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("bundle") == str(locate(root))
    assert (found.pop("report"), found.pop("unmet")) == (None, [])
    assert found == json.loads(json.dumps(outcome_in(root).model_dump()))
    assert found["max_error"] == 0.2
    assert found["lines"][0]["sentence"] not in done.stderr


def test_requirement_that_is_not_met_leaves_the_current_bundle(place: Path, indexed: Done) -> None:
    root = place / "bundles" / "drawn"
    before = sorted(path.name for path in root.iterdir()), current_id(root)
    required = "recall_at_1>=0.1,n_queries>=100000,match_share<=0"
    command = ["calibrate", str(root), "--max-error", "0.3", "--require", required]
    refused = vouch_build(*command, cwd=place)
    assert refused.returncode == 3
    assert refused.stdout == ""
    said = " ".join(refused.stderr.split())
    assert "The outcome does not meet --require: n_queries is " in said
    assert "(wanted >= 100000), match_share is " in said
    assert "recall_at_1 is" not in said
    assert said.endswith("Nothing is published.")
    assert "The first result is right for " in said, "the outcome is shown all the same"
    assert current_id(root) == before[1]
    assert set(before[0]) <= {path.name for path in root.iterdir()}
    found = json.loads(vouch_build(*command, "--json", cwd=place).stdout)
    assert found["bundle"] is None
    assert [one.split()[0] for one in found["unmet"]] == ["n_queries", "match_share"]


def test_index_publishes_nothing_that_is_not_as_required(
    place: Path, indexed: Done, digits_bundle: Path
) -> None:
    options = ["--name", "gated", "--require", "n_queries>=100000"]
    refused = index(place, digits_bundle, *options)
    assert refused.returncode == 3
    assert list((place / "bundles" / "gated").iterdir()) == []
    met = index(place, digits_bundle, *options[:2], "--require", "n_queries>=50")
    assert met.returncode == 0, met.stderr
    assert current_id(place / "bundles" / "gated") is not None
    assert f"embedded by an earlier run │ {N_IMAGES}" in met.stderr, "nothing is embedded twice"


@pytest.mark.parametrize(
    "command",
    [
        ["index", "drawn", "--encoder", "none", "--calibrate"],
        ["all", "-c", "digits"],
        ["calibrate", "none"],
        ["evaluate", "none", "--queries", "none"],
    ],
    ids=lambda command: command[0],
)
def test_unknown_numbers_are_refused_before_the_work(tmp_path: Path, command: list[str]) -> None:
    refused = vouch_build(*command, "--require", "recal_at_1>=0.8", cwd=tmp_path)
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert "Did you mean recall_at_1? Accepted: n_queries, recall_at_1, match_share" in said
    assert list(tmp_path.iterdir()) == []


def test_requirements_of_an_uncalibrated_index_are_refused(tmp_path: Path) -> None:
    command = ["index", "drawn", "--encoder", "none", "--require", "recall_at_1>=0.8"]
    refused = vouch_build(*command, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--require needs --calibrate" in " ".join(refused.stderr.split())


def test_uncalibrated_index_says_what_is_missing(place: Path, digits_bundle: Path) -> None:
    command = ["index", "drawn", "--encoder", str(digits_bundle), "--name", "bare", "--json"]
    done = vouch_build(*command, cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["recall_at_1"] is found["report"] is None
    [line] = found["lines"]
    assert line["code"] == "not_calibrated"
    assert "Next: `vouch-build index SOURCE --calibrate`, or" in line["sentence"]
    assert "bundles/bare/" in found["bundle"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of vectors of ten labels, easy to tell apart."""
    place = tmp_path_factory.mktemp("vectors")
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 40)
    centres = generator.standard_normal((10, 16))
    table = centres[labels] + 0.3 * generator.standard_normal((400, 16))
    np.save(place / "v.npy", table.astype(np.float32))
    items = [f'{{"id": "{row}", "label": "{label}"}}\n' for row, label in enumerate(labels)]
    (place / "items.jsonl").write_text("".join(items))
    return place


ALL = ("all", "--vectors", "v.npy", "--items", "items.jsonl", "--encoder-name", "theirs")


def test_all_ends_with_its_outcome_and_publishes_what_is_required(vectors: Path) -> None:
    refused = vouch_build(*ALL, "--require", "recall_at_1<=0.5", "--json", cwd=vectors)
    assert refused.returncode == 3, refused.stderr
    assert not (vectors / "bundles").exists()
    assert json.loads(refused.stdout)["unmet"] == ["recall_at_1 is 1 (wanted <= 0.5)"]
    done = vouch_build(*ALL, "--require", "recall_at_1>=0.5", cwd=vectors)
    assert done.returncode == 0, done.stderr
    root = vectors / "bundles" / "v"
    assert done.stdout == f"bundles/v/{current_id(root)}\n"
    evaluation = json.loads((vectors / "runs" / "v" / "evaluation.json").read_text())
    sentences = outcome_of(Calibration.load(locate(root)), evaluation).sentences()
    assert done.stderr.splitlines()[-2 - len(sentences) : -2] == sentences
    assert done.stderr.splitlines()[-2] == "All numbers: runs/v/evaluation.md"
    assert "| recall at 1 | 1.0000 |" in (vectors / "runs" / "v" / "evaluation.md").read_text()
    assert len(done.stderr.splitlines()) < 40, "the table is a file"


def shown(monkeypatch: pytest.MonkeyPatch, *severities: Any) -> str:
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, color_system="standard", width=40)
    monkeypatch.setattr(outcome_module, "console", terminal)
    monkeypatch.setattr(outcome_module, "error_console", terminal)
    report = OutcomeReport((), as_json=False)
    line = {"recall_at_1": 0.08}
    report.check(outcome(lines=[_line("recall_low", one, line) for one in severities]))
    report.show()
    return text.getvalue()


def test_lines_of_a_useless_gallery_are_red_and_shortfalls_yellow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure, warning, fact = shown(monkeypatch, "failure", "warning", "fact").splitlines()
    assert failure.startswith(
        "\x1b[31mRecall at 1 is 8 %: this encoder does not separate such images"
    )
    assert warning.startswith("\x1b[33m")
    assert "\x1b" not in fact


def test_quiet_command_prints_failures_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "quiet", True)
    report, low = OutcomeReport((), as_json=False), {"recall_at_1": 0.08}
    lines = [_line("flagged", "fact", {"alpha": 0.05}), _line("recall_low", "failure", low)]
    report.check(outcome(lines=lines))
    report.show()
    assert capsys.readouterr().err.startswith("Recall at 1 is 8 %")


def test_outcome_of_an_evaluation_is_refused_without_a_word_on_publishing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = OutcomeReport.of("recall_at_1>=0.9", as_json=False, to_stdout=True)
    with pytest.raises(RequirementNotMet, match=r"recall_at_1 is 0.5 \(wanted >= 0.9\)\.$"):
        report.check(outcome(recall_at_1=0.5))
