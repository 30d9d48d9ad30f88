"""A collection becomes a bundle: always the same one, and nothing is mixed up."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index_builder.commands.doctor import examine
from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import NONE, Tolerance, parse_tolerance
from index_builder.indexing.collection import Indexing, index_collection
from index_builder.indexing.dry_run import inspect_collection
from index_builder.indexing.local_copy import copy_images
from index_builder.indexing.sources import open_source
from index_builder.indexing.workdir import Shard, ShardStore, Work, occupied
from index_builder.storage import Storage
from index_builder.vectors.encoder_file import find_encoder
from model_store import open_bundle
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import (
    BundleNotFound,
    ConfigError,
    DatasetError,
    OutputError,
    RunInUse,
    TooManyBadImages,
)
from model_store.gallery import IndexSettings
from model_store.images import ImageLimits, decode_image
from tests.support import hostile_images
from tests.support.build_command import vouch_build
from tests.support.collection_files import N_IMAGES, lines, write_drawings

At = Callable[[Path], Indexing]


def assert_aligned(bundle: Path, folder: Path, encoder: Path) -> None:
    """Every item has the embedding and picture of its own image, by a loop without batches."""
    gallery = open_bundle(bundle, "cpu", threads=1).retriever.gallery
    alone = OnnxEncoder(encoder, "cpu", threads=1)
    for row, item in enumerate(gallery.items(np.arange(gallery.n_items))):
        data = (folder / item.id).read_bytes()
        pixels = decode_image(data).pixels
        wanted = alone.encode(alone.metadata.preprocessing(pixels)[None]).mean[0]
        found = gallery.directions(np.array([row]))[0]
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=1e-6)
        thumbnail = decode_image(gallery.thumbnail(item.id).data).pixels
        np.testing.assert_array_equal(thumbnail, pixels)  # small pictures are kept whole


def test_a_large_photograph_is_indexed_as_it_is_asked_with(
    at: At, drawings: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "photographs"
    shutil.copytree(drawings / "0", folder / "0")
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    large = Image.fromarray(noise).resize((3000, 2000))
    large.save(folder / "0" / "large.jpg", quality=90)
    indexing = replace(at(folder), index=IndexSettings(preview_side=1000))
    index_collection(indexing)
    retriever = open_bundle(indexing.bundles, "cpu", threads=1).retriever
    assert retriever.encoder.metadata.preprocessing.decoding == "reduced"
    first = retriever.search((folder / "0" / "large.jpg").read_bytes()).matches[0]
    assert first.id == "0/large.jpg"
    assert first.similarity == pytest.approx(1, abs=1e-6)  # a preview decodes the item once more
    preview = decode_image(retriever.gallery.preview("0/large.jpg")).pixels
    assert preview.shape == (667, 1000, 3)
    wanted = np.asarray(large.resize((1000, 667)), dtype=np.float64)
    assert np.abs(preview - wanted).mean() < 4
    assert retriever.gallery.preview("0/0000.png") == b""  # its thumbnail is as large


def test_a_folder_becomes_a_bundle(indexing: Indexing, drawings: Path) -> None:
    outcome = index_collection(indexing)
    assert (outcome.n_items, outcome.n_quarantined, outcome.n_kept) == (N_IMAGES, 0, 0)
    bundle = open_bundle(indexing.bundles)
    assert bundle.manifest.gallery["name"] == "drawings"
    assert bundle.manifest.calibration is None
    answer = bundle.retriever.search((drawings / "0" / "0000.png").read_bytes())
    assert answer.decision.verdict == "not_calibrated"
    assert (answer.matches[0].id, answer.matches[0].label) == ("0/0000.png", "0")
    assert_aligned(outcome.bundle, drawings, indexing.encoder)
    assert not list(indexing.directory.glob("*/*"))  # what nobody needs any more


def test_workers_change_nothing(indexing: Indexing, tmp_path: Path) -> None:
    one = replace(indexing, n_workers=1, directory=tmp_path / "other", bundles=tmp_path / "others")
    assert index_collection(indexing).bundle.name == index_collection(one).bundle.name


class Killed(Exception):
    """What happens at the worst of moments."""


def test_an_interrupted_run_goes_on(
    indexing: Indexing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = replace(indexing, directory=tmp_path / "other", bundles=tmp_path / "others")
    whole = index_collection(elsewhere).bundle.name
    write = ShardStore.write
    written: list[Shard] = []

    def write_two(store: ShardStore, shard: Shard) -> None:
        if len(written) == 2:
            raise Killed
        written.append(shard)
        write(store, shard)

    monkeypatch.setattr(ShardStore, "write", write_two)
    with pytest.raises(Killed):
        index_collection(indexing)
    monkeypatch.setattr(ShardStore, "write", write)
    torn = next(indexing.directory.glob("shards/*"))
    torn.write_bytes(torn.read_bytes()[:-1])
    outcome = index_collection(indexing)
    assert outcome.bundle.name == whole
    kept = [shard for shard in written if shard.number != int(torn.stem)]
    assert outcome.n_kept == len(kept[0].ids) > 0


@pytest.fixture
def spoilt(drawings: Path, tmp_path: Path) -> Path:
    """The drawings and one in a hundred that cannot be read, for ten different reasons."""
    folder = tmp_path / "spoilt"
    shutil.copytree(drawings, folder)
    good = sorted(folder.rglob("*.png"))
    whole = good[0].read_bytes()
    for name, data in ten_kinds(whole).items():
        (folder / "5" / name).write_bytes(data)
    return folder


def ten_kinds(whole: bytes) -> dict[str, bytes]:
    made = hostile_images.contrived()
    return {
        "0000a empty.png": b"",
        "0000b cut.png": whole[: len(whole) // 2],
        "0000c text.jpg": b"this is no image",
        "0000d header only.png": whole[:33],
        "0000e zeros.gif": bytes(500),
        "0000f gigapixels.png": made["PNG of 3.6 gigapixels"],
        "0000g no width.png": made["PNG of no width"],
        "0000h frames.gif": made["GIF of 100,000 frames"],
        "0000i heavy.png": bytes(21 * 2**20),
        "0000j jpeg.jpg": b"\xff\xd8\xff" + b"\0" * 300,
    }


def test_ten_kinds_of_bad_images_are_left_out_and_said(spoilt: Path, at: At) -> None:
    indexing = replace(at(spoilt), tolerance=parse_tolerance("10"))
    outcome = index_collection(indexing)
    assert (outcome.n_items, outcome.n_quarantined) == (N_IMAGES, 10)
    said = lines(indexing.directory / "quarantine.jsonl")
    assert [one["id"] for one in said] == [f"5/{name}" for name in ten_kinds(b"1234")]
    assert {one["error"] for one in said} == {
        "CorruptImage",
        "EmptyImage",
        "ImageTooLarge",
        "UnsupportedImage",
    }
    assert all(one["source"] == one["id"] and one["reason"] for one in said)
    assert_aligned(outcome.bundle, spoilt, indexing.encoder)


@pytest.mark.parametrize("tolerance", [parse_tolerance("4%"), NONE])
def test_too_many_bad_images_end_the_run_and_lose_nothing(
    spoilt: Path, at: At, tolerance: Tolerance
) -> None:
    indexing = replace(at(spoilt), tolerance=tolerance)
    with pytest.raises(TooManyBadImages, match=r"of 210 images cannot be indexed, .*--max-bad"):
        index_collection(indexing)
    assert lines(indexing.directory / "quarantine.jsonl")
    assert not (indexing.bundles / "CURRENT").exists()
    embedded = [*(indexing.directory / "shards").glob("*.shard")]
    assert embedded
    raised = index_collection(replace(indexing, tolerance=parse_tolerance("5%")))
    assert (raised.n_items, raised.n_quarantined) == (N_IMAGES, 10)
    # One image may be taken by a run with other limits: its block is looked at again.
    assert raised.n_kept > 0 or len(embedded) == 1


def test_a_mended_image_is_looked_at_again(spoilt: Path, at: At) -> None:
    indexing = replace(at(spoilt), tolerance=parse_tolerance("9"))
    with pytest.raises(TooManyBadImages):
        index_collection(indexing)
    shutil.copy(min((spoilt / "6").iterdir()), spoilt / "5" / "0000b cut.png")
    outcome = index_collection(indexing)
    assert (outcome.n_items, outcome.n_quarantined, outcome.n_copies) == (N_IMAGES + 1, 9, 1)
    summary = json.loads((indexing.directory / "index.json").read_text(encoding="utf-8"))
    counted = [summary[name] for name in ("n_items", "n_quarantined", "n_copies")]
    assert counted == [outcome.n_items, outcome.n_quarantined, outcome.n_copies]
    assert list(summary) == sorted(summary)
    (copies,) = lines(indexing.directory / "duplicates.jsonl")
    copied = min((spoilt / "6").iterdir()).relative_to(spoilt).as_posix()
    assert copies["ids"] == ["5/0000b cut.png", copied]


def test_repeated_ids_are_refused_with_both_places(drawings: Path, at: At, tmp_path: Path) -> None:
    names = [path.relative_to(drawings).as_posix() for path in sorted(drawings.rglob("*.png"))]
    rows = [{"id": f"{row % 150}", "path": name} for row, name in enumerate(names)]
    manifest = drawings / "repeated.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(
        DatasetError,
        match=r"50 ids belong to more than one image: '0' in repeated.jsonl, line 1 and "
        r"in repeated.jsonl, line 151; .*; …\.",
    ):
        index_collection(at(manifest))
    manifest.write_text("\n".join(map(json.dumps, rows[:151])), encoding="utf-8")
    with pytest.raises(DatasetError, match=r"^1 id belongs to more than one image: '0' in "):
        index_collection(at(manifest))
    manifest.unlink()


@pytest.mark.parametrize(
    ("code", "where"),
    [(errno.EROFS, (Path, "mkdir")), (errno.ENOSPC, (ShardStore, "write"))],
)
def test_where_nothing_can_be_written_it_is_said(
    indexing: Indexing, monkeypatch: pytest.MonkeyPatch, code: int, where: tuple[type, str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, "refused, for the test")

    monkeypatch.setattr(*where, refuse)
    with pytest.raises(OutputError, match=r"refused, for the test.*run the same command again"):
        index_collection(indexing)
    monkeypatch.undo()
    assert index_collection(indexing).n_items == N_IMAGES


def test_an_empty_collection_is_refused(at: At, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DatasetError, match="There are no images"):
        index_collection(at(tmp_path / "nothing"))


def phone_folder(place: Path, drawings: Path, n_taken: int = 2) -> Path:
    """A folder of ten files, eight of which are as a phone makes them."""
    folder = place / "phone"
    folder.mkdir()
    for path in sorted((drawings / "0").iterdir())[:n_taken]:
        shutil.copy(path, folder / path.name)
    for number in range(8):
        (folder / f"IMG_{number:04d}.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    return folder


def test_files_of_other_formats_are_counted_listed_and_said(
    at: At, drawings: Path, tmp_path: Path
) -> None:
    indexing = at(phone_folder(tmp_path, drawings))
    outcome = index_collection(indexing)
    assert outcome.n_items == 2
    rows = dict(outcome.rows(indexing.directory))
    assert rows["of other formats"].startswith("8: 8 HEIC, which iPhones write; see ")
    assert len(lines(indexing.directory / "quarantine.jsonl")) == 8
    assert json.loads((indexing.directory / "index.json").read_text())["n_of_other_formats"] == 8
    assert dict(inspect_collection(indexing).rows())["of other formats"].startswith("8: 8 HEIC")


def test_losses_of_decoding_are_counted_listed_and_kept(
    at: At, drawings: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "scans"
    shutil.copytree(drawings / "0", folder)
    first = min(folder.iterdir())
    drawing = Image.open(first).convert("RGB")
    drawing.save(folder / "pages.tif", save_all=True, append_images=[drawing.rotate(90)])
    Image.new("RGB", (20, 20), "white").save(folder / "blank.png")
    indexing = at(folder)
    outcome = index_collection(indexing)
    found = {line["id"]: line["losses"] for line in lines(indexing.directory / "losses.jsonl")}
    assert found == {
        "blank.png": ["The picture has only one colour."],
        "pages.tif": ["The image is animated or has several pages; only the first was used."],
    }
    row = dict(outcome.rows(indexing.directory))["changed when decoded"]
    assert row.startswith("2: 1 × The picture")
    assert "losses.jsonl" in row
    notes = [one.what for one in examine(indexing.directory)]
    assert "2 images lost data in decoding" in notes


def test_copies_are_told_by_their_pixels(at: At, drawings: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    shutil.copytree(drawings / "0", folder)
    first = min(folder.iterdir())
    Image.open(first).save(folder / "again.bmp")
    Image.open(first).convert("RGB").save(folder / "again.tif", compression="tiff_lzw")
    indexing = at(folder)
    assert index_collection(indexing).n_copies == 2
    (line,) = lines(Work(indexing.directory).duplicates)
    assert line["ids"] == [first.name, "again.bmp", "again.tif"]


def test_a_folder_of_nothing_else_says_so(at: At, drawings: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no images.*IMG_0000\.HEIC.*magick mogrify"):
        index_collection(at(phone_folder(tmp_path, drawings, n_taken=0)))


def test_larger_images_are_taken_where_they_are_allowed(
    at: At, drawings: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "scans"
    shutil.copytree(drawings / "0", folder)
    Image.new("L", (9000, 7000), 90).save(folder / "scan.tif", compression="tiff_lzw")
    indexing = at(folder)
    with pytest.raises(TooManyBadImages, match=r"63,000,000 pixels.*raise --max-pixels"):
        index_collection(indexing)
    outcome = index_collection(replace(indexing, limits=ImageLimits(max_pixels=70_000_000)))
    assert (outcome.n_quarantined, outcome.n_items) == (0, len(list(folder.iterdir())))


def test_a_limit_of_bytes_holds(at: At, drawings: Path, tmp_path: Path) -> None:
    indexing = replace(at(drawings), limits=ImageLimits(max_bytes=10))
    with pytest.raises(TooManyBadImages, match=r"at most 10 are accepted.*--max-bytes"):
        index_collection(indexing)


def test_two_do_not_work_in_one_directory(indexing: Indexing) -> None:
    with occupied(indexing.directory), pytest.raises(RunInUse, match="Another process"):
        index_collection(indexing)
    assert index_collection(indexing).n_items == N_IMAGES


def test_two_find_out_at_once_that_bundles_can_be_written(
    indexing: Indexing, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def touched(path: Path, mode: int = 0o666) -> None:
        touch(path, mode)
        if path.parent == indexing.bundles:
            path.unlink()  # by the other one

    monkeypatch.setattr(Path, "touch", touched)
    assert index_collection(indexing).n_items == N_IMAGES


def test_what_cannot_be_read_is_not_said_to_be_unwritable(
    indexing: Indexing, drawings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads every folder, and these tests may be root's."""

    def refused(folder: Path, _root: Path, _left_out: LeftOut) -> Iterator[str]:
        yield "0/0000.png"
        raise PermissionError(errno.EACCES, "Permission denied", f"{folder}/private")

    monkeypatch.setattr("index_builder.indexing.sources.places.files_below", refused)
    with pytest.raises(DatasetError, match=r"private cannot be read: Permission denied"):
        index_collection(indexing)
    with pytest.raises(DatasetError, match=r"private cannot be read: Permission denied"):
        copy_images(str(drawings), tmp_path / "copy", Storage())


def test_a_dry_run_tells_and_leaves_nothing(spoilt: Path, at: At) -> None:
    indexing = at(spoilt)
    found = inspect_collection(indexing)
    assert (found.contents.n_images, found.contents.n_labels) == (N_IMAGES + 10, 10)
    assert found.n_sample == 64
    assert found.unreadable.total() > 0
    assert found.seconds > 0
    assert found.n_bytes > N_IMAGES * 128 * 8
    assert not indexing.directory.exists()


def test_images_that_are_as_large_as_the_input_and_others_travel_alike(
    indexing: Indexing, drawings: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number, path in enumerate(sorted(drawings.rglob("*.png"))[:70]):
        side = 8 + 3 * (number % 20)
        Image.open(path).resize((side, side + 1)).save(folder / path.name)
    outcome = index_collection(replace(indexing, source=open_source(folder)))
    assert_aligned(outcome.bundle, folder, indexing.encoder)


def test_an_encoder_is_found_where_it_may_be(digits_bundle: Path, tmp_path: Path) -> None:
    encoder = digits_bundle / "encoder.onnx"
    for path in (encoder, digits_bundle, digits_bundle.parent):
        assert find_encoder(path) == encoder
    with pytest.raises(BundleNotFound, match="There is no encoder at"):
        find_encoder(tmp_path)


@pytest.mark.parametrize("text", ["", "1.5", "101%", "-1", "many"])
def test_a_tolerance_is_a_share_or_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-bad"):
        parse_tolerance(text)
    assert parse_tolerance("1%").allows(2, 200)
    assert not parse_tolerance("1%").allows(3, 200)
    for nothing in ("0", "0%"):
        assert not parse_tolerance(nothing).allows(1, 10**6)
    assert parse_tolerance("100%").allows(7, 7)
    assert parse_tolerance("2").allows(2, 10)
    assert not parse_tolerance("2").allows(3, 10)


@pytest.mark.process
def test_a_dry_run_prints_its_result(tmp_path: Path) -> None:
    (tmp_path / "drawn").mkdir()
    write_drawings(tmp_path / "drawn", 20)
    command = ("-q", "index", "drawn", "--dry-run")
    done = vouch_build(*command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"images +│ +20 \(", done.stdout)
    found = json.loads(vouch_build(*command, "--json", cwd=tmp_path).stdout)
    assert (found["n_images"], found["n_labels"], found["n_unreadable"]) == (20, 10, {})


@pytest.mark.process
@pytest.mark.parametrize(
    ("missing", "options", "status"),
    [
        (["gone.png"], (), 0),
        (["gone.png"], ("--strict",), 1),
        (["gone.png", "lost.png"], (), 1),
        (["gone.png", "lost.png"], ("--max-bad", "2"), 0),
    ],
)
def test_a_dry_run_of_a_collection_that_would_stop_says_so(
    tmp_path: Path, missing: list[str], options: tuple[str, ...], status: int
) -> None:
    (tmp_path / "drawn").mkdir()
    write_drawings(tmp_path / "drawn", 120)
    found = [str(path.relative_to(tmp_path)) for path in (tmp_path / "drawn").rglob("*.png")]
    (tmp_path / "list.csv").write_text("\n".join(["path", *found, *missing]))
    command = ("-q", "index", "list.csv", "--dry-run", *options)
    done = vouch_build(*command, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert "122" in done.stdout or "121" in done.stdout, "the estimates come first"
    said = f"error: The run would stop: {len(missing)} of {120 + len(missing)} images cannot be in"
    assert done.stderr.startswith(said * status)
    assert done.stderr.count("\n") == status
    report = vouch_build(*command, "--json", cwd=tmp_path)
    assert (report.returncode, json.loads(report.stdout)["would_stop"]) == (status, status == 1)
    run = vouch_build(*("-q", "index", "list.csv", *options), cwd=tmp_path)
    assert run.returncode == status, "the run ends in the same way"


def test_a_dry_run_counts_each_certain_failure_once(at: At, tmp_path: Path, drawings: Path) -> None:
    shutil.copytree(drawings, tmp_path / "drawn")
    paths = sorted((tmp_path / "drawn").rglob("*.png"))[:70]
    (tmp_path / "bad.png").write_bytes(paths[0].read_bytes()[:60])
    rows = [{"path": str(path.relative_to(tmp_path)), "label": "a"} for path in paths]
    rows[3]["label"] = "\u202e"
    rows[:0] = [{"path": "bad.png"}, {"path": "gone.png"}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    indexing = replace(at(tmp_path / "list.jsonl"), tolerance=parse_tolerance("3"))
    found = inspect_collection(indexing)
    assert [why.error for why in found.failures.values()] == [
        "CorruptImage",
        "InvalidLabel",
        "Unreadable",
    ]
    assert not found.stops
    found.require_complete()
    less = replace(found, tolerance=parse_tolerance("2"))
    with pytest.raises(TooManyBadImages, match="stop: 3 of 72 images cannot be indexed"):
        less.require_complete()


@pytest.mark.process
def test_labels_that_look_like_missing_values_are_named(tmp_path: Path) -> None:
    (tmp_path / "drawn").mkdir()
    write_drawings(tmp_path / "drawn", 20)
    paths = sorted((tmp_path / "drawn").rglob("*.png"))
    labels = ["NaN", "N/A", "null", "None", "nano"]
    rows = [f"{path.relative_to(tmp_path)},{labels[n % 5]}" for n, path in enumerate(paths)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    said = " ".join(vouch_build("index", "list.csv", "--dry-run", cwd=tmp_path).stderr.split())
    assert "Taken as labels: 'N/A', 'NaN', 'None', 'null'. If the labels are missing," in said


@pytest.mark.process
def test_a_filter_field_that_no_image_has_is_named(tmp_path: Path) -> None:
    (tmp_path / "drawn").mkdir()
    write_drawings(tmp_path / "drawn", 20)
    paths = sorted((tmp_path / "drawn").rglob("*.png"))
    rows = [f"{path.relative_to(tmp_path)},1990" for path in paths]
    (tmp_path / "list.csv").write_text("\n".join(["path,year", *rows]))
    command = ("index", "list.csv", "--dry-run", "--filter-field", "year,yaer,label")
    done = vouch_build(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = "No image has the metadata of --filter-field yaer. Check the spelling."
    assert said in " ".join(done.stderr.split())
