"""``vouch-search``: a folder of images to a table, continued after an interruption."""

from __future__ import annotations

import csv
import errno
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from pyarrow import parquet

import vouch_search as vouch
from service import schemas
from tests.end_to_end.questions import picture
from vouch_search import command


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    (folder / "a").mkdir(parents=True)
    (folder / "b").mkdir()
    (folder / "a" / "1.png").write_bytes(picture("PNG", 28, 28, seed=1))
    (folder / "b" / "1.png").write_bytes(picture("PNG", 28, 28, seed=2))
    (folder / "b" / "bad.png").write_bytes(b"no image")
    (folder / "=cmd.png").write_bytes(picture("PNG", 28, 28, seed=3))
    return folder


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main([*map(str, arguments), "--quiet"])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_each_image_with_its_path(
    digits_bundle: Path, photographs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "matches.csv"
    assert run(photographs, "--gallery", digits_bundle, "--out", out) == 0
    rows = read(out)
    assert [Path(row["query"]).relative_to(photographs).as_posix() for row in rows] == [
        "=cmd.png",
        "a/1.png",
        "b/1.png",
        "b/bad.png",
    ]
    with vouch.open(digits_bundle) as gallery:
        first = gallery.search(photographs / "a" / "1.png").results[0]
    assert (rows[1]["id"], float(rows[1]["match_probability"])) == (
        first.id,
        first.match_probability,
    )
    assert "JPEG" in rows[3]["error"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["matches.csv"]


def test_parquet_has_a_row_for_each_result(
    digits_bundle: Path, photographs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "matches.parquet"
    assert (
        run(photographs, "--gallery", digits_bundle, "--out", out, "-k", 2, "--per", "result") == 0
    )
    table = parquet.read_table(out)
    assert table.num_rows == 3 * 2 + 1  # and the one that failed
    assert table.schema.field("match_probability").type == "double"


def test_metadata_in_csv_are_json(tmp_path: Path) -> None:
    """So that R and other programs can read them, too."""
    metadata = {"site": "Hügel", "alive": True, "tags": ["a", None]}
    row = {"query": "=1.jpg", "verdict": "match", "metadata": metadata}
    command._write_csv(tmp_path / "matches.csv", [row], cast("vouch.Gallery", None))
    with (tmp_path / "matches.csv").open(encoding="utf-8", newline="") as file:
        (read,) = csv.DictReader(file)
    assert json.loads(read["metadata"]) == metadata
    assert "Hügel" in read["metadata"]
    assert read["query"] == "'=1.jpg"


def test_html_holds_the_pictures(digits_bundle: Path, photographs: Path, tmp_path: Path) -> None:
    out = tmp_path / "matches.html"
    assert run(photographs, "--gallery", digits_bundle, "--out", out) == 0
    page = out.read_text("utf-8")
    assert page.count("<tr>") == 1 + 4
    assert page.count('src="data:image/') == 3 * 2
    assert "http" not in page


def test_interrupted_command_goes_on_where_it_ended(
    digits_bundle: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, searched = tmp_path / "matches.csv", []
    search_many = vouch.Gallery.search_many

    def interrupted(gallery: vouch.Gallery, images: Any, *others: Any, **options: Any) -> Any:
        searched.extend(images)
        if len(searched) == 3:
            raise KeyboardInterrupt
        return search_many(gallery, images, *others, **options)

    monkeypatch.setattr(command, "AT_ONCE", 1)
    monkeypatch.setattr(vouch.Gallery, "search_many", interrupted)
    arguments = (photographs, "--gallery", digits_bundle, "--out", out)
    assert run(*arguments) == 130
    assert not out.exists()
    (journal,) = tmp_path.glob("matches.csv.*.partial")
    with journal.open("a", encoding="utf-8") as file:
        file.write('{"file": "cut o')  # a crash in the middle of a line
    (photographs / "a" / "1.png").write_bytes(picture("PNG", 28, 28, seed=9))  # changed since
    assert run(*arguments) == 0
    assert [path.name for path in searched[3:]] == ["1.png", "1.png", "bad.png"]
    assert len(read(out)) == 4
    assert not list(tmp_path.glob("*.partial"))


def test_failed_request_ends_the_command_which_goes_on_later(
    digits_bundle: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vouch.open(digits_bundle) as local:
        answer = local.search(photographs / "a" / "1.png").model_dump_json()
    searched: list[str] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, content=answer)
        (name,) = re.findall(rb'filename="(.+?)"', request.read())
        searched.append(name.decode())
        is_lost = name == b"bad.png" and searched.count("bad.png") == 1
        return httpx2.Response(502 if is_lost else 200, content=answer)

    def opened(_: str) -> vouch.RemoteGallery:
        client = vouch.Client("http://service", transport=httpx2.MockTransport(respond))
        detail: dict[str, Any] = {"name": "digits", "bundle": SimpleNamespace(id="0")}
        return vouch.RemoteGallery(client, schemas.GalleryDetail.model_construct(**detail))

    monkeypatch.setattr(command, "_opened", opened)
    out = tmp_path / "matches.csv"
    assert run(photographs, "--gallery", "http://service/v1/galleries/digits", "--out", out) == 1
    assert (len(searched), out.exists()) == (4, False)
    assert run(photographs, "--gallery", "http://service/v1/galleries/digits", "--out", out) == 0
    assert searched[4:] == ["bad.png"]
    assert [row["error"] for row in read(out)] == [""] * 4


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["missing", "--out", "m.csv"], 1, "'missing' is no folder. Name a folder"),
        (["FOLDER", "--out", "m.xlsx"], 2, "must end in .csv, .parquet, .html"),
        (
            ["FOLDER", "--out", "m.csv", "-k", "0"],
            2,
            "-k: received '0', wanted a whole number",
        ),
        (["FOLDER", "--out", "m.csv", "--jobs", "x"], 2, "--jobs: received 'x', wanted a whole"),
        (
            ["FOLDER", "--out", "m.csv", "--gallery", "http://host:1/"],
            2,
            "names no gallery. Write http://host:1/v1/galleries/NAME",
        ),
        (
            ["FOLDER", "--out", "m.csv", "--gallery", "HTTP://host:1/"],
            2,
            "names no gallery. Write HTTP://host:1/v1/galleries/NAME",
        ),
    ],
)
def test_wrong_option_is_named(
    digits_bundle: Path,
    photographs: Path,
    arguments: list[str],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(photographs) if one == "FOLDER" else one for one in arguments]
    assert run("--gallery", digits_bundle, *given) == status
    assert re.search(message, capsys.readouterr().err)


def test_full_disk_names_the_file_and_says_what_to_do(
    digits_bundle: Path,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vouch_search.command.os.fsync", full)
    assert run(photographs, "--gallery", digits_bundle, "--out", tmp_path / "m.csv") == 1
    message = rf"error: {tmp_path}/m\.csv\.\w+\.partial: No space left on device\. Free disk .*\n"
    assert re.fullmatch(message, capsys.readouterr().err)


def test_service_that_cannot_be_reached_is_an_error_of_one_line(
    photographs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VOUCH_API_KEY", "")  # no key
    gallery = "http://127.0.0.1:9/v1/galleries/demo"
    assert run(photographs, "--gallery", gallery, "--out", tmp_path / "m.csv") == 1
    message = rf"error: The service of {gallery} does not answer \(.+\)\. Is it running\?\n"
    assert re.fullmatch(message, capsys.readouterr().err)
