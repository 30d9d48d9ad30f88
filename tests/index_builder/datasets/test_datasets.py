from __future__ import annotations

import gzip
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index_builder.configuration.build import BuildConfig, DatasetConfig, OutlierConfig
from index_builder.datasets import Splits, load_splits
from index_builder.datasets.folder import folder
from index_builder.datasets.image_files import label_messages, nested_labels_message
from index_builder.datasets.images import from_arrays
from index_builder.datasets.small_images import digits, idx_dataset, outliers
from index_builder.datasets.splits import MIN_SPLIT
from model_store.errors import DatasetError, TooManyBadImages
from model_store.images import Preprocessing, decode_image
from tests.support.narrowing import not_none


def config_of(
    dataset: DatasetConfig, seed: int = 0, outliers: OutlierConfig | None = None
) -> BuildConfig:
    return BuildConfig(name="x", seed=seed, dataset=dataset, outliers=outliers or OutlierConfig())


def digits_without(*labels: str, seed: int = 0) -> BuildConfig:
    return config_of(DatasetConfig(kind="digits", withheld_labels=labels), seed)


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    ours, theirs = digits(), load_digits()
    assert list(ours.labels) == [str(label) for label in theirs.target]
    pixels = np.stack([ours.pixels(row)[:, :, 0] for row in range(len(ours))])
    np.testing.assert_array_equal(np.round(theirs.images * (255 / 16)), pixels)


def test_no_image_stands_in_two_parts() -> None:
    splits = load_splits(digits_without("3", "8"))
    parts = [
        splits.training,
        splits.validation,
        *(
            part
            for queries in (splits.calibration, splits.evaluation)
            for part in (queries.matched, queries.withheld)
        ),
    ]
    ids = [item for part in parts for item in part.ids]
    assert len(ids) == len(set(ids))
    assert set(splits.training.ids) | set(splits.validation.ids) == set(splits.gallery.ids)


def test_withheld_labels_are_nowhere_but_among_the_withheld() -> None:
    splits = load_splits(digits_without("3", "8"))
    assert set(splits.gallery.labels) == set("01245679")
    for queries in (splits.calibration, splits.evaluation):
        assert set(queries.withheld.labels) == {"3", "8"}
        assert set(queries.matched.labels) == set("01245679")
        assert len(queries.withheld) >= 50


def test_the_seed_alone_decides() -> None:
    first, again, other = (load_splits(digits_without(seed=seed)) for seed in (0, 0, 1))
    assert first.gallery.ids == again.gallery.ids
    assert first.gallery.ids != other.gallery.ids
    ours, theirs = (not_none(one.evaluation.outliers) for one in (first, again))
    np.testing.assert_array_equal(ours.pixels(5), theirs.pixels(5))


def test_labels_that_train_nothing_make_up_gallery_and_queries() -> None:
    splits = load_splits(config_of(DatasetConfig(kind="digits", unseen_share=0.4)))
    assert set(splits.training.labels) == set(splits.validation.labels) == set("012345")
    for part in (splits.gallery, splits.calibration.matched, splits.evaluation.matched):
        assert set(part.labels) == set("6789")
    assert splits.gallery_unseen
    assert not load_splits(config_of(DatasetConfig(kind="digits"))).gallery_unseen
    with pytest.raises(DatasetError, match="10 labels into 9 and 1; each side needs two"):
        load_splits(config_of(DatasetConfig(kind="digits", unseen_share=0.1)))


def test_even_a_few_images_leave_some_for_validation(photographs: Path) -> None:
    dataset = DatasetConfig(kind="folder", path=photographs, gallery_share=0.6)
    splits = load_splits(config_of(dataset))
    counts = Counter(splits.gallery.labels)
    assert set(splits.validation.labels) == {x for x, n in counts.items() if n >= MIN_SPLIT}


def test_an_unknown_withheld_label_is_named() -> None:
    with pytest.raises(DatasetError, match="names cat"):
        load_splits(digits_without("cat"))


def test_a_subset_keeps_id_label_and_pixels_together() -> None:
    pixels = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
    images = from_arrays("x", pixels, list("abcde"))
    chosen = images.at([3, 1]).at([1])
    assert (chosen.ids, chosen.labels) == (("x-1",), ("b",))
    np.testing.assert_array_equal(chosen.pixels(0)[..., 0], pixels[1])


def test_batches_cover_everything_once() -> None:
    images = from_arrays("x", np.arange(28, dtype=np.uint8).reshape(7, 2, 2), list("abcdefg"))
    batches = list(images.batches(Preprocessing(2, 2), 3))
    assert [len(rows) for rows, _ in batches] == [3, 3, 1]
    np.testing.assert_array_equal(
        np.concatenate([batch for _, batch in batches])[..., 0].ravel(), np.arange(28)
    )


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for label, n in (("cat", 10), ("dog", 6)):
        (tmp_path / label).mkdir()
        for i in range(n):
            pixels = generator.integers(0, 256, (9 + i, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / label / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


def test_a_folder_gives_labels_and_ids(photographs: Path) -> None:
    images = folder(photographs)
    assert len(images) == 16
    assert (images.ids[0], images.labels[0]) == ("cat/0.png", "cat")
    assert images.pixels(0).shape == (9, 12, 3)
    dataset = DatasetConfig(kind="folder", path=photographs, gallery_share=0.6)
    splits = load_splits(config_of(dataset))
    assert len(splits.gallery) == 10


def test_an_unreadable_image_is_left_out_and_named(
    photographs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photographs / "dog" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    (photographs / "dog" / "empty.png").write_bytes(b"")
    images = folder(photographs)
    assert len(images) == 16
    assert "dog/broken.jpg" in caplog.text
    assert "dog/empty.png" in caplog.text


def test_a_folder_with_many_unreadable_images_is_refused(photographs: Path) -> None:
    for number in range(5):
        (photographs / "dog" / f"broken{number}.jpg").write_bytes(b"\xff\xd8\xff\xe0 not really")
    with pytest.raises(TooManyBadImages, match="5 of 21 items cannot be read, and at most 20 %"):
        folder(photographs)


def test_folder_with_names_that_are_not_utf8_leaves_them_out(
    photographs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photographs / os.fsdecode(b"caf\xe9")).mkdir()
    (photographs / os.fsdecode(b"caf\xe9") / "1.png").touch()
    assert len(folder(photographs)) == 16
    assert r"caf\udce9/1.png" in caplog.text
    assert "Rename the file" in caplog.text


def test_folder_says_of_each_file_why_it_is_left_out(
    photographs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photographs / "top.png").write_bytes((photographs / "cat" / "0.png").read_bytes())
    (photographs / "cat" / "._0.png").write_bytes(b"\0\5\x16\7")
    (photographs / "cat" / "photo").write_bytes((photographs / "dog" / "0.png").read_bytes())
    images = folder(photographs)
    assert "cat/photo" in images.ids
    assert len(images) == 17
    for name in ("top.png", "cat/._0.png", "cat/notes.txt"):
        assert name in caplog.text
        assert name not in images.ids


def test_folder_of_linked_labels_is_followed(photographs: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for label in ("cat", "dog"):
        (linked / label).symlink_to(photographs / label)
    (linked / "again").symlink_to(linked)
    assert folder(linked).labels == folder(photographs).labels


def test_a_folder_without_labelled_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="one sub-folder for each label") as refused:
        folder(tmp_path)
    assert "name a CSV file with the columns path and label" in str(refused.value)
    assert "use --no-labels" in str(refused.value)
    with pytest.raises(DatasetError, match="not a folder"):
        folder(tmp_path / "nowhere")


def test_one_label_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    for i in range(9):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / "only" / f"{i}.png")
    with pytest.raises(DatasetError, match=r"Labels of the gallery: .only.\. A build needs two"):
        load_splits(config_of(DatasetConfig(kind="folder", path=tmp_path)))


def test_outliers_of_the_two_halves_share_nothing() -> None:
    halves = [not_none(outliers("digits", part, np.random.default_rng(0))) for part in (0, 1)]
    assert not set(halves[0].ids) & set(halves[1].ids)
    crops = [not_none(outliers("photographs", part, np.random.default_rng(0))) for part in (0, 1)]
    assert crops[0].pixels(0).shape == (48, 48, 3)
    assert not np.array_equal(crops[0].pixels(0), crops[1].pixels(0))
    assert outliers("none", 0, np.random.default_rng(0)) is None


def test_as_many_outliers_as_are_asked_for() -> None:
    """Fewer outliers change nothing else: the rest of the split is drawn as it was."""

    def split(n_images: int | None) -> Splits:
        kinds = OutlierConfig(calibration="digits", evaluation="photographs", n_images=n_images)
        return load_splits(config_of(DatasetConfig(kind="digits"), outliers=kinds))

    whole, few, enough = split(None), split(25), split(10**6)
    few_ids, whole_ids = (not_none(one.calibration.outliers).ids for one in (few, whole))
    assert len(few_ids) == len(not_none(few.evaluation.outliers)) == 25
    assert set(few_ids) <= set(whole_ids)
    assert few.training.ids == whole.training.ids
    n_enough, n_whole = (len(not_none(one.evaluation.outliers)) for one in (enough, whole))
    assert n_enough == n_whole


def test_missing_idx_files_say_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOUCH_DATA_DIR", str(tmp_path))
    with pytest.raises(DatasetError, match="MNIST/raw"):
        idx_dataset("MNIST", "t10k")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(b"not gzip")
    with pytest.raises(DatasetError, match="cannot be read"):
        idx_dataset("MNIST", "t10k")
    header = bytes([0, 0, 8, 3, *(4).to_bytes(4), *(28).to_bytes(4), *(28).to_bytes(4)])
    (raw / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(784)))
    with pytest.raises(DatasetError, match="784 values"):
        idx_dataset("MNIST", "t10k")


@pytest.mark.real_data
def test_fashion_mnist_is_the_official_one(data_dir: Path) -> None:
    images = idx_dataset("FashionMNIST", "t10k")
    assert len(images) == 10_000
    assert images.labels[:3] == ("Ankle boot", "Pullover", "Trouser")
    assert sum(label == "Bag" for label in images.labels) == 1000


def test_folder_decodes_each_small_picture_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = np.zeros((300, 400, 3), np.uint8), np.zeros((1200, 1600, 3), np.uint8)
    small[:150] = large[:600] = 200
    for name, pixels in (("a/small.png", small), ("b/large.jpg", large)):
        path = tmp_path / name
        path.parent.mkdir()
        Image.fromarray(pixels).save(path)
    images = folder(tmp_path)
    wanted = {name: decode_image((tmp_path / name).read_bytes()).pixels for name in images.ids}
    monkeypatch.setattr("index_builder.datasets.images.decode_image", None)
    for side in (None, 224):
        np.testing.assert_array_equal(images.pixels(0, side), wanted["a/small.png"])
    assert not images.pixels(0).flags.writeable
    monkeypatch.undo()
    np.testing.assert_array_equal(images.pixels(1), wanted["b/large.jpg"])
    assert images.pixels(1, 224).shape == (300, 400, 3)


def test_folder_keeps_no_more_decoded_pictures_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (30, 40), "red" if name == "a" else "blue").save(tmp_path / name / "1.png")
    monkeypatch.setattr("index_builder.datasets.folder.MOST_KEPT_BYTES", 30 * 40 * 3 + 1)
    images = folder(tmp_path)
    monkeypatch.setattr("index_builder.datasets.images.decode_image", None)
    readable = []
    for position in (0, 1):
        try:
            readable.append(images.pixels(position).shape)
        except TypeError:
            continue
    assert readable == [(40, 30, 3)]


@pytest.mark.parametrize("tops", [("train", "test"), ("Training", "val"), ("images",)])
def test_folders_of_labels_one_folder_deeper_are_refused(tmp_path: Path, tops: list[str]) -> None:
    """The usual layout of data sets: all images would have the labels train and test."""
    for number, top in enumerate(tops):
        for label in ("cat", "dog"):
            (tmp_path / top / label).mkdir(parents=True)
            picture = Image.new("RGB", (32, 32), (80 * number, 0, 200 * (label == "cat")))
            picture.save(tmp_path / top / label / "1.png")
    with pytest.raises(DatasetError, match=rf"for example SOURCE/{max(tops)}\. .* --no-labels"):
        folder(tmp_path)
    assert set(folder(tmp_path / tops[0]).labels) == {"cat", "dog"}
    assert len(folder(tmp_path, labelled=False)) == 2 * len(tops)


@pytest.mark.parametrize(
    "paths",
    [
        ["train/1.png", "test/1.png"],  # flat: the folders may be labels
        ["train/a/1.png", "test/a/1.png"],  # one inner folder
        ["cat/a/1.png", "cat/b/1.png", "dog/a/1.png"],  # inner folders of labels
        ["1.png"],
        [],
    ],
)
def test_labels_that_may_be_top_folders_cause_no_message(paths: list[str]) -> None:
    labels = [path.split("/")[0] for path in paths if "/" in path]
    assert nested_labels_message(labels, paths) == ""


@pytest.mark.parametrize("label", ["?", "Unknown", "unbekannt ", "NA", "-", "<NA>"])
def test_labels_that_people_write_for_the_unknown_are_named(label: str) -> None:
    assert label_messages([label, "Ida"]) == [
        f"Taken as labels: {label!r}. If the labels are missing, leave these fields empty."
    ]


def test_labels_of_a_folder_that_look_alike_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, label in enumerate(("Fox", "fox ", "None")):
        (tmp_path / label).mkdir()
        Image.new("RGB", (32, 32), (80 * number, 0, 0)).save(tmp_path / label / "1.png")
    folder(tmp_path)
    assert (
        "Labels that differ only in case, spaces or Unicode form count as different: 'Fox', 'fox '."
        in caplog.text
    )
    assert "Taken as labels: 'None'. If the labels are missing" in caplog.text
    caplog.clear()
    folder(tmp_path, labelled=False)
    assert "differ only" not in caplog.text


def test_copies_with_different_labels_are_named(
    photographs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = photographs / "cat" / "0.png"
    shutil.copyfile(first, photographs / "cat" / "again.png")  # of the same label
    folder(photographs)
    assert "different labels" not in caplog.text
    shutil.copyfile(first, photographs / "dog" / "copy.png")
    folder(photographs)
    assert (
        "Copies of an image have different labels (1 image): cat/0.png and dog/copy.png."
        in caplog.text
    )
    caplog.clear()
    folder(photographs, labelled=False)
    assert "different labels" not in caplog.text
