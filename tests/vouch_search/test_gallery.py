"""A gallery in a folder: opened, searched, and refused with a message that says what is wanted."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

import vouch_search as vouch
from model_store.image_inputs import image_file
from service import schemas
from tests.end_to_end.questions import picture


@pytest.fixture(scope="module")
def gallery(digits_bundle: Path) -> Iterator[vouch.Gallery]:
    with vouch.open(digits_bundle) as gallery:
        yield gallery


@pytest.fixture(scope="module")
def digit() -> bytes:
    return picture("PNG", 28, 28)


@pytest.mark.process
def test_import_takes_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, vouch_search; "
        "print(sorted({'numpy', 'torch', 'pydantic', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gallery_shows_no_internals(gallery: vouch.Gallery) -> None:
    public = {name for name in dir(gallery) if not name.startswith("_")}
    assert public == {
        "bundle_id",
        "close",
        "description",
        "items",
        "labels",
        "name",
        "search",
        "search_many",
        "search_text",
        "thumbnail",
    }
    assert repr(gallery) == "<Gallery 'digits', 864 items of 8 labels>"


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "I;16", "CMYK", "YCbCr"])
def test_pillow_image_of_any_mode_is_searched_with(gallery: vouch.Gallery, mode: str) -> None:
    image = Image.new("RGB", (40, 40), (200, 200, 200))
    image = Image.fromarray(np.full((40, 40), 900, np.uint16)) if mode == "I;16" else image
    assert gallery.search(image if mode == "I;16" else image.convert(mode), k=1).results


def test_same_pixels_give_the_same_answer_whatever_holds_them(
    gallery: vouch.Gallery, digit: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "digit.png"
    file.write_bytes(digit)
    image = Image.open(io.BytesIO(digit))
    pixels = np.asarray(image)
    with file.open("rb") as opened:
        inputs: list[Any] = [file, str(file), digit, opened, image, pixels, pixels / 255]
        answers = [gallery.search(one, k=3) for one in inputs]
    assert len({str([one.results for one in [answer]]) for answer in answers}) == 1
    assert answers[0].query_name == str(file)


def test_turned_pillow_image_is_searched_with_upright(gallery: vouch.Gallery) -> None:
    pixels = np.zeros((60, 40, 3), np.uint8)
    pixels[:30] = 255
    upright = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    file = io.BytesIO()
    upright.rotate(180).save(file, "PNG", exif=exif)
    turned = gallery.search(Image.open(io.BytesIO(file.getvalue())), k=1)
    assert turned.results == gallery.search(upright, k=1).results


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"image": 3}, r"int 3.*path of an image file"),
    ({"image": None}, r"NoneType None.*path of an image file"),
    ({"image": ["a.png"]}, r"list \['a.png'\].*path of an image file"),
    ({"image": {"image": b""}}, r"dict .*path of an image file"),
    ({"image": object()}, r"object .*path of an image file"),
    ({"image": "missing.png"}, r"no image file 'missing.png'.*Wanted"),
    ({"image": Path("tests")}, r"'tests' is a folder.*search_many"),
    ({"image": ""}, r"from the empty text ''\. Wanted"),
    ({"image": "a\0b"}, r"cannot be the path of a file"),
    ({"image": io.StringIO("text")}, r"reading text.*'rb'"),
    ({"image": np.zeros((3, 64, 64), np.uint8)}, r"\(3, 64, 64\).*transpose"),
    ({"image": np.zeros((1, 8, 8, 3), np.uint8)}, r"\(1, 8, 8, 3\).*search_many"),
    ({"image": np.zeros((8, 8, 3), np.int64)}, r"int64.*uint8"),
    ({"image": np.full((8, 8), 7.0)}, r"values 7 to 7.*0 to 1"),
    ({"image": np.full((8, 8), np.nan)}, r"nan.*0 to 1"),
    ({"image": np.zeros(3)}, r"shape \(3,\).*\(H, W\)"),
    ({"image": Image.new("F", (3, 3))}, r"mode 'F'.*'RGB'"),
    ({"k": "5"}, r"k: .*valid integer.*str '5'"),
    ({"k": 0}, r"k: .*greater than or equal to 1.*int '0'"),
    ({"k": 2.5}, r"k: .*valid integer.*float '2.5'"),
    ({"k": True}, r"k: .*number.*bool 'True'"),
    ({"limit": 3}, r"`k`"),
    ({"alph": 0.1}, r"alph: is not a search option.*`alpha`"),
    ({"alpha": "x"}, r"alpha: .*valid number.*str 'x'"),
    ({"filter": 3}, r"filter: received int, wanted a mapping"),
    ({"filter": {"day": date(2026, 1, 1)}}, r"filter.day: received date '2026-01-01', wanted text"),
    ({"filter": {"year": {"in": {3}}}}, r"filter.year.in: received set '\{3\}', wanted text"),
    ({"filter": {("a", "b"): 3}}, r"filter: key \('a', 'b'\): received tuple, wanted text"),
    ({"filter": {"t": np.timedelta64(5, "ns")}}, r"filter.t: received timedelta64"),
    ({"source": ""}, r"source: received the empty text '', wanted the name of a source"),
    ({"order": "random"}, r"order: .*'similarity' or 'probability'.*'random'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[one[1] for one in WRONG])
def test_wrong_argument_is_named_with_what_is_wanted(
    gallery: vouch.Gallery, digit: bytes, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError, OSError), match=re.compile(message, re.DOTALL)):
        gallery.search(**{"image": digit, **arguments})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (3, r"path: received int 3, wanted the path of a folder"),
        ("http://127.0.0.1:8080", r"vouch.Client"),
        ("", r"path: received the empty text '', wanted a path"),
    ],
)
def test_open_refuses_what_is_no_folder(path: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        vouch.open(path)


@pytest.mark.parametrize("provider", ["gpu", "CPU", None])
def test_open_names_an_unknown_provider(digits_bundle: Path, provider: Any) -> None:
    message = f"provider: received {provider!r}, wanted 'auto', 'cpu', 'cuda', .* or 'coreml'"
    with pytest.raises(ValueError, match=message):
        vouch.open(digits_bundle, provider=provider)


class TestClosed:
    def test_closed_gallery_holds_no_file_open(
        self, digits_bundle: Path, digit: bytes, tmp_path: Path
    ) -> None:
        copied = Path(shutil.copytree(digits_bundle, tmp_path / "bundle"))
        gallery = vouch.open(copied)
        answers = gallery.search_many([digit] * 4, n_jobs=2)
        assert open_files(copied)
        gallery.close()
        assert len(answers) == 4
        assert not open_files(copied)

    def test_threads_of_search_many_leave_no_file_open(
        self, digits_bundle: Path, digit: bytes, tmp_path: Path
    ) -> None:
        copied = Path(shutil.copytree(digits_bundle, tmp_path / "bundle"))
        with vouch.open(copied) as gallery:
            gallery.search(digit)
            before = open_files(copied)
            gallery.search_many([digit] * 4, n_jobs=2)
            assert open_files(copied) == before

    def test_closed_gallery_refuses_searches(self, digits_bundle: Path, digit: bytes) -> None:
        gallery = vouch.open(digits_bundle)
        gallery.close()
        gallery.close()
        for ask in (
            lambda: gallery.search(digit),
            lambda: gallery.search_text("a digit"),
            lambda: gallery.search_many([digit]),
            lambda: next(gallery.items()),
            lambda: gallery.thumbnail("1"),
        ):
            with pytest.raises(RuntimeError, match="'digits' is closed"):
                ask()
        assert (repr(gallery), len(gallery)) == ("<Gallery 'digits', closed>", 864)


def open_files(directory: Path) -> list[str]:
    """Return the files in a directory that this process has open, sorted."""
    files = (one.path for one in psutil.Process().open_files())
    return sorted(one for one in files if one.startswith(str(directory)))


def test_filter_takes_any_mapping_and_numbers_of_numpy(
    gallery: vouch.Gallery, digit: bytes
) -> None:
    plain = gallery.search(digit, filter={"or": [{"label": "1"}, {"number": {"gte": 3}}]})
    same = MappingProxyType({"number": MappingProxyType({"gte": np.int64(3)})})
    found = gallery.search(digit, filter=MappingProxyType({"or": [{"label": "1"}, same]}))
    assert found.results == plain.results
    assert found.results


def test_numpy_integer_is_a_number_of_results(gallery: vouch.Gallery, digit: bytes) -> None:
    assert len(gallery.search(digit, k=np.int64(2)).results) == 2  # type: ignore[arg-type]


class TestManySearches:
    def test_folder_gives_a_row_for_each_image_and_each_failure(
        self, gallery: vouch.Gallery, digit: bytes, tmp_path: Path
    ) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "1.png").write_bytes(digit)
        (tmp_path / "b.png").write_bytes(b"no image")
        (tmp_path / "notes.txt").write_text("no image either", "utf-8")
        answers = gallery.search_many(tmp_path, k=2, n_jobs=2)
        table = answers.to_pandas()
        assert list(table["query"]) == [str(tmp_path / "a/1.png"), str(tmp_path / "b.png")]
        first = gallery.search(digit, k=2)
        assert table["match_probability"][0] == first.results[0].match_probability
        assert table["ood_p_value"][0] == first.query.ood.p_value
        assert table["query_id"][0] == first.query.id  # joins the table with decisions
        assert "b.png" not in answers.failures[0].error.args[0]
        assert "JPEG" in table["error"][1]
        assert repr(answers) == f"<Answers 2 queries: 1 {first.verdict}, 1 failed>"

    def test_results_are_a_table_with_the_names_of_http(
        self, gallery: vouch.Gallery, digit: bytes
    ) -> None:
        answers = gallery.search_many([digit, digit], k=3)
        table = answers.to_pandas(per="result")
        assert len(table) == 6
        assert set(table.columns) <= {"query", "verdict", *schemas.Result.model_fields}
        assert answers.to_arrow(per="result").num_rows == 6

    def test_first_error_is_raised_if_it_is_asked_for(self, gallery: vouch.Gallery) -> None:
        with pytest.raises(TypeError, match="int 3"):
            gallery.search_many([3], errors="raise")  # type: ignore[list-item]

    def test_array_of_images_or_of_paths_is_a_list(
        self, gallery: vouch.Gallery, digit: bytes, tmp_path: Path
    ) -> None:
        (tmp_path / "1.png").write_bytes(digit)
        for images in (np.zeros((2, 8, 8, 3), np.uint8), np.array([str(tmp_path / "1.png")] * 2)):
            answers = gallery.search_many(images)
            assert len(answers) == 2
            assert not answers.failures

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"images": b"bytes"}, "received bytes, wanted a list of images"),
            ({"images": 3}, "received int, wanted a list of images"),
            ({"images": memoryview(b"bytes")}, "received memoryview, wanted a list of images"),
            ({"images": io.BytesIO(b"bytes")}, "received BytesIO, wanted a list of images"),
            ({"images": np.zeros((8, 8, 3), np.uint8)}, "received ndarray, wanted a list"),
            ({"images": np.zeros((8, 8))}, "received ndarray, wanted a list of images"),
            ({"images": ""}, "images: received the empty text '', wanted a path"),
            ({"images": "missing"}, "'missing' is no folder"),
            ({"images": [], "n_jobs": 0}, "n_jobs: received 0"),
            ({"images": [], "errors": "ignore"}, "errors: received 'ignore'"),
        ],
    )
    def test_wrong_argument_is_named(
        self, gallery: vouch.Gallery, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            gallery.search_many(**arguments)


def test_file_name_that_is_not_utf_8_is_shown_with_question_marks(
    gallery: vouch.Gallery, digit: bytes, tmp_path: Path
) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    file.write_bytes(digit)
    with file.open("rb") as opened:
        answers = gallery.search_many([file, opened, Image.open(file)])
    names = [str(tmp_path / "caf?.png")] * 3
    assert [one.query_name for one in answers] == names
    assert list(answers.to_pandas()["query"]) == names
    assert answers.to_arrow()["query"].to_pylist() == names
    assert image_file(file)[0] == image_file(Image.open(file))[0] == "caf?.png"


class TestTables:
    def test_arrow_column_of_several_types_is_json_text(self) -> None:
        values = [42, "XL", None, ["a", 1], 10**30, True]
        table = vouch.to_arrow([{"size": one, "n": 1} for one in values])
        texts = ["42", '"XL"', None, '["a", 1]', str(10**30), "true"]
        assert table["size"].to_pylist() == texts
        assert table["n"].to_pylist() == [1] * 6
        assert vouch.to_arrow([{"size": 10**30}])["size"].to_pylist() == [str(10**30)]
        assert vouch.to_arrow([{"size": 1}, {"size": 2.5}])["size"].to_pylist() == [1.0, 2.5]

    def test_failure_is_a_row_whatever_its_error(
        self, gallery: vouch.Gallery, digit: bytes
    ) -> None:
        class NotCopied(Exception):
            def __init__(self, message: str, *, code: str) -> None:
                super().__init__(f"{code}: {message}")

        failure = vouch.Failure("a.png", NotCopied("not read", code="x"))
        table = vouch.to_pandas([*gallery.search_many([digit]), failure])
        assert list(table["error"][1:]) == ["x: not read"]
        assert list(table["query_name"][1:]) == ["a.png"]
        assert vouch.to_arrow([failure])["error"].to_pylist() == ["x: not read"]


def test_items_are_a_table_by_id(gallery: vouch.Gallery) -> None:
    table = vouch.to_pandas(gallery.items())
    assert len(table) == len(gallery)
    assert list(table["id"]) == sorted(table["id"])
    assert set(table["label"]) == set(gallery.labels)


class TestShownAnswers:
    def test_notebook_shows_pictures_and_escapes_names(
        self, gallery: vouch.Gallery, digit: bytes
    ) -> None:
        answer = gallery.search(digit, k=2)
        shown = answer._repr_html_()
        assert shown.count('src="data:image/') == 2
        answer.results[0] = answer.results[0].model_copy(update={"label": "<script>"})
        assert "<script>" not in answer._repr_html_()
        assert gallery.search_many([digit])._repr_html_().count("<tr>") == 2

    def test_answer_can_be_pickled_and_copied(
        self, gallery: vouch.Gallery, digit: bytes, tmp_path: Path
    ) -> None:
        (tmp_path / "digit.png").write_bytes(digit)
        answers = gallery.search_many([tmp_path / "digit.png", b"no image"], k=2)
        for copied in (pickle.loads(pickle.dumps(answers)), copy.deepcopy(answers)):
            assert repr(copied) == repr(answers)
            assert list(copied.rows("result")) == list(answers.rows("result"))
            assert copied[0].query_name == str(tmp_path / "digit.png")
            assert str(copied.failures[0].error) == str(answers.failures[0].error)
        assert "<img" in answers._repr_html_()
        assert copy.deepcopy(answers)._repr_html_() == answers._repr_html_()
        assert "<img" not in pickle.loads(pickle.dumps(answers))._repr_html_()

    def test_answer_of_a_closed_gallery_is_shown_without_pictures(
        self, digits_bundle: Path, digit: bytes
    ) -> None:
        with vouch.open(digits_bundle) as opened:
            answers = opened.search_many([digit])
        assert isinstance(answers[0], vouch.Answer)
        shown = answers[0]._repr_html_()
        assert answers[0].results[0].label is not None
        assert f"1. {answers[0].results[0].label}" in shown
        assert "<img" not in shown + answers._repr_html_()

    def test_repr_is_one_line(self, gallery: vouch.Gallery, digit: bytes) -> None:
        answer = gallery.search(digit, k=3)
        first = answer.results[0]
        assert repr(answer) == (
            f"<Answer {answer.verdict}: {first.id} ({first.label}), "
            f"P(match) = {first.match_probability:.3f}, and 2 more>"
        )
