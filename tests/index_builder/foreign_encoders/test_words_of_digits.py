"""From two towers that were really trained to calibrated searches in words, by the commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.metrics import auroc
from model_store.bundles.bundle import open_bundle
from model_store.queries import search_text
from tests.support.word_towers import write_captions

pytestmark = [pytest.mark.slow, pytest.mark.process]

TOWERS = Path(__file__).with_name("two_towers.py")
IN_GALLERY = 8
WRONG_CLICKS = 0.1


def run(*arguments: str | Path) -> None:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)


def clicks(n: int, seed: int) -> list[dict[str, str]]:
    """Draw what people searched with, and clicked on: now and then on something else.

    A quarter of them want a digit that the gallery has none of.
    """
    from tests.index_builder.foreign_encoders.two_towers import caption

    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        meant = int(generator.integers(IN_GALLERY))
        if generator.random() < 0.25:
            lines.append({"text": caption(IN_GALLERY + meant % 2, generator)})
            continue
        line = {"text": caption(meant, generator), "label": str(meant)}
        if generator.random() < WRONG_CLICKS:
            line["label"] = str((meant + 1) % IN_GALLERY)
        lines.append(line)
    # Each is somebody's search of its own, whoever else has used the same words.
    return [{**line, "group": f"{seed}-{row}"} for row, line in enumerate(lines)]


def test_words_find_digits_and_the_answer_says_how_surely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.index_builder.foreign_encoders.two_towers import TRAINED_FROM, pictures

    monkeypatch.chdir(tmp_path)
    for row, (image, label) in enumerate(zip(*pictures(), strict=True)):
        if row < TRAINED_FROM // 2 and label < IN_GALLERY:
            folder = tmp_path / "images" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{row}.png")
    how = '{"input_size": [3, 8, 8], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}'
    Path("how.json").write_text(how)
    door = ["--torch", f"{TOWERS}:digits", "--text", "--preprocess", "how.json"]
    run("encoder", *door, "--out", "e")
    run("index", "images", "--encoder", "e", "--name", "digits")
    uncalibrated = open_bundle(Path("bundles/digits"), "cpu", threads=1).retriever
    assert search_text(uncalibrated, "sieben").decision.verdict == "not_calibrated"
    table = write_captions(Path("clicks.jsonl"), clicks(400, seed=0))
    run("calibrate", "bundles/digits", "--captions", table, "--max-error", "0.2")
    bundle = open_bundle(Path("bundles/digits"), "cpu", threads=1)

    told: list[float] = []
    right: list[bool] = []
    nothing: list[float] = []
    verdicts: list[str] = []
    fresh = clicks(400, seed=1)
    absent = np.array(["label" not in line for line in fresh])
    for line in fresh:
        answer = search_text(bundle.retriever, line["text"], 1, expected_absent=0.25)
        told.append(answer.matches[0].match_probability or 0.0)
        right.append(answer.matches[0].label == line.get("label"))
        nothing.append(answer.decision.no_match_probability or 0.0)
        verdicts.append(answer.decision.verdict)
    assert np.mean(np.array(right)[~absent]) > 0.8
    assert np.mean(told) == pytest.approx(np.mean(right), abs=0.05)
    assert np.mean(nothing) == pytest.approx(absent.mean(), abs=0.08)
    scores = np.array(nothing)
    separation = auroc(scores[absent], scores[~absent])
    assert separation is not None
    assert separation > 0.95
    matched = np.array([verdict == "match" for verdict in verdicts])
    assert matched.mean() > 0.4
    assert np.mean(~np.array(right)[matched]) <= 0.2  # as promised
    assert matched[absent].mean() < 0.1
