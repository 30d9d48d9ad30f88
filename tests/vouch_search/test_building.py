"""Galleries that are built from Python: the same as those of the commands, and opened."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vouch_search as vouch
from index_builder.commands.index import IndexOptions
from index_builder.progress import console
from vouch_search import building

DEMO = Path(__file__).parents[2] / "docs" / "demo" / "photographs"


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for kind in ("airplane", "camera", "flamingo", "lobster", "pagoda", "umbrella"):
        shutil.copytree(DEMO / kind, tmp_path / "photographs" / kind)
    return tmp_path / "photographs"


@pytest.mark.bundle
@pytest.mark.slow
def test_five_lines_from_a_folder_to_a_table(
    photographs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gallery = vouch.build("photographs", progress=False)
    table = gallery.search_many(photographs / "camera").to_pandas()
    assert (gallery.name, len(gallery)) == ("photographs", len([*photographs.rglob("*.*")]))
    assert list(table["label"]) == ["camera"] * len(table)
    assert table["match_probability"].between(0, 1).all()
    assert Path("bundles/photographs/CURRENT").exists()
    assert capfd.readouterr().out == ""
    assert not console.quiet


@pytest.mark.bundle
@pytest.mark.slow
def test_index_takes_the_options_of_the_command(photographs: Path, tmp_path: Path) -> None:
    gallery = vouch.index(
        photographs,
        name="few",
        calibrate=False,
        labels=False,
        index="flat",
        bundles=tmp_path / "elsewhere",
        progress=False,
    )
    assert (gallery.name, gallery.labels) == ("few", ())
    assert gallery.search(next(photographs.rglob("*.webp"))).verdict == "not_calibrated"
    assert (tmp_path / "elsewhere" / "CURRENT").exists()


@pytest.mark.bundle
@pytest.mark.process
def test_script_without_a_main_guard_indexes_and_runs_once(
    photographs: Path, digits_bundle: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import vouch_search as vouch\n"
        "print('the script runs', flush=True)\n"
        f"gallery = vouch.index({str(photographs)!r}, encoder={str(digits_bundle)!r},\n"
        "    calibrate=False, progress=False)\n"
        "print(len(gallery), __file__)\n",
        "utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    n_images = len([*photographs.rglob("*.*")])
    assert done.stdout == f"the script runs\n{n_images} {script}\n"


def test_path_and_choice_of_an_option_can_be_texts() -> None:
    options = building._options(IndexOptions, parents="taxa.csv", items="~/a.csv", index="flat")
    assert options.parents == Path("taxa.csv")
    assert options.items == Path.home() / "a.csv"
    assert options.index == "flat"


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (vouch.build, {"images": 3}, "images: received int 3, wanted a path"),
        (vouch.build, {"images": "a", "encoder": 3}, "encoder: received int 3"),
        (vouch.build, {"images": "a", "root": 3}, "root: received int 3, wanted a path"),
        (vouch.build, {"images": ".", "root": "a"}, "--root applies to a table"),
        (vouch.build, {"images": "missing"}, "missing"),
        (vouch.build, {"images": ""}, "images: received the empty text ''"),
        (vouch.index, {"images": ""}, "images: received the empty text ''"),
        (vouch.index, {"images": "a", "max_eror": 0.1}, "max_eror"),
        (vouch.build, {"images": "a", "require": 5}, "require: .*string.*int '5'"),
        (vouch.build, {"images": "a", "require": ["recall_at_1>=0.8"]}, "require: .*string.*list"),
        (vouch.build, {"images": "a", "name": 5}, "name: .*string.*int '5'"),
        (vouch.build, {"images": "a", "labels": "no"}, "labels: .*boolean.*str 'no'"),
        (vouch.build, {"images": "a", "bundles": 5}, "bundles: received int 5, wanted a path"),
        (vouch.index, {"images": "a", "name": 5}, "name: .*string.*int '5'"),
        (vouch.index, {"images": "a", "description": 5}, "description: .*string.*int '5'"),
        (vouch.index, {"images": "a", "calibrate": "no"}, "calibrate: .*boolean.*str 'no'"),
        (vouch.index, {"images": "a", "max_error": "0.02"}, "max_error: .*number.*str '0.02'"),
        (vouch.index, {"images": "a", "levels": ["genus"]}, "levels: .*string.*list"),
        (vouch.index, {"images": "a", "engine": "spark"}, "engine: .*'local' or 'ray'.*'spark'"),
        (vouch.index, {"images": "a", "provider": "gpu"}, "provider: .*'auto'.*'gpu'"),
        (vouch.index, {"images": "a", "parents": 5}, "parents: received int 5, wanted a path"),
        (vouch.index, {"images": "a", "calibrate": False, "max_error": 0.1}, "calibrate"),
        (vouch.index, {"images": "a", "workers": 0}, "workers: 0 is out of range.* at least 1"),
        (vouch.index, {"images": "a", "fetch_seconds": math.nan}, "fetch_seconds: nan is out of"),
        (
            vouch.index,
            {"images": "a", "previews": 10**6},
            "previews: 1000000 is out of range; wanted at least 161 and at most 1024",
        ),
    ],
)
def test_wrong_argument_is_named(function: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, vouch.VouchError), match=message):
        function(**arguments)
