"""Published data sets, on small trees of the layout that their authors publish."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from index_builder.reproduction.data_sets import (
    Origin,
    chars74k,
    cifar10,
    mnist_like,
    omniglot,
    svhn,
)
from index_builder.reproduction.photographs import (
    cars,
    coordinates,
    cub,
    in_shop,
    lfw,
    msls,
    stanford_online_products,
)
from model_store.errors import DatasetError


def picture(path: Path, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade, 20, 30)).save(path)


def lines(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path, allow_partial=True)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """CUB's tree, of four images: two classes of either half."""
    root = tmp_path / "CUB_200_2011"
    names = ["001.A/a_1.jpg", "100.B/b_1.jpg", "101.C/c_1.jpg", "200.D/d_1.jpg"]
    for shade, name in enumerate(names):
        picture(root / "images" / name, shade)
    lines(root / "images.txt", *(f"{row} {name}" for row, name in enumerate(names, 1)))
    lines(root / "image_class_labels.txt", "1 1", "2 100", "3 101", "4 200")
    lines(root / "classes.txt", "1 001.A", "100 100.B", "101 101.C", "200 200.D")
    lines(root / "train_test_split.txt", "1 0", "2 1", "3 0", "4 1")
    return root


def test_cub_is_halved_by_class_whatever_its_own_split_says(birds: Path, origin: Origin) -> None:
    parts = cub(origin).parts
    assert parts["train"].labels == ("001.A", "100.B")
    assert parts["test"].labels == ("101.C", "200.D")
    assert parts["test"].pixels(1)[0, 0, 0] in range(6)  # JPEG: about shade 3


def test_less_than_was_published_is_refused_with_counts_and_place(
    birds: Path, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=r"2 of 5,864 images, 2 of 100 labels") as caught:
        cub(Origin(tmp_path))
    assert "vision.caltech.edu" in str(caught.value)
    assert "allow_partial" in str(caught.value)


def test_what_is_partial_is_said(birds: Path, origin: Origin) -> None:
    partial = cub(origin).partial
    assert partial["CUB-200-2011, test"] == "2 of 5,924 images, 2 of 100 labels"


def test_a_missing_file_is_named_with_where_to_get_it(birds: Path, origin: Origin) -> None:
    (birds / "classes.txt").unlink()
    with pytest.raises(DatasetError, match=r"classes\.txt is missing.*Download from https://"):
        cub(origin)


def test_missing_images_are_counted_and_named(birds: Path, tmp_path: Path) -> None:
    (birds / "images" / "101.C" / "c_1.jpg").unlink()
    with pytest.raises(DatasetError, match=r"1 of 2 images are missing.*101\.C/c_1\.jpg"):
        cub(Origin(tmp_path))
    assert cub(Origin(tmp_path, allow_partial=True)).parts["test"].labels == ("200.D",)


def test_a_damaged_table_is_named_by_line(birds: Path, origin: Origin) -> None:
    lines(birds / "images.txt", "1 001.A/a_1.jpg", "2")
    with pytest.raises(DatasetError, match=r"images\.txt, line 2: found 1 columns, wanted 2"):
        cub(origin)


def test_cars_are_read_from_the_annotations(tmp_path: Path, origin: Origin) -> None:
    root = tmp_path / "cars196"
    kinds = [("relative_im_path", "O"), ("class", "O"), ("test", "O")]
    annotations = np.array(
        [("car_ims/000001.jpg", 98, 1), ("car_ims/000002.jpg", 99, 0)], dtype=kinds
    )
    for name in ("000001.jpg", "000002.jpg"):
        picture(root / "car_ims" / name)
    names = np.array([f"car {number}" for number in range(1, 197)], dtype=object)
    savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": names})
    parts = cars(origin).parts
    assert (parts["train"].labels, parts["test"].labels) == (("car 98",), ("car 99",))
    (root / "cars_annos.mat").write_bytes(b"no MATLAB")
    with pytest.raises(DatasetError, match="cannot be read"):
        cars(origin)


def test_products_are_divided_by_the_two_lists(tmp_path: Path, origin: Origin) -> None:
    root = tmp_path / "Stanford_Online_Products"
    for number, part in enumerate(("train", "test")):
        name = f"bicycle_final/{number}_0.JPG"
        picture(root / name)
        head = "image_id class_id super_class_id path"
        lines(root / f"Ebay_{part}.txt", head, f"{number + 1} {number + 7} 1 {name}")
    parts = stanford_online_products(origin).parts
    assert (parts["train"].labels, parts["test"].labels) == (("7",), ("8",))
    assert parts["test"].ids == ("bicycle_final/1_0.JPG",)


@pytest.mark.parametrize("folder", [".", "Img"])
def test_clothes_have_queries_and_a_gallery(tmp_path: Path, origin: Origin, folder: str) -> None:
    root = tmp_path / "In-shop"
    rows = [
        "img/MEN/Tees/id_00000001/01_1_front.jpg id_00000001 train",
        "img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 query",
        "img/WOMEN/Dresses/id_00000002/02_3_back.jpg id_00000002 gallery",
    ]
    for row in rows:
        picture(root / folder / row.split()[0])
    head = "image_name item_id evaluation_status"
    lines(root / "Eval" / "list_eval_partition.txt", "3", head, *rows)
    parts = in_shop(origin).parts
    assert parts["train"].labels == ("id_00000001",)
    assert parts["query"].labels == parts["gallery"].labels == ("id_00000002",)
    assert parts["gallery"].pixels(0).shape == (10, 12, 3)
    lines(root / "Eval" / "list_eval_partition.txt", "1", head, rows[0].replace("train", "val"))
    with pytest.raises(DatasetError, match="part 'val'"):
        in_shop(origin)


def test_faces_are_divided_by_person(tmp_path: Path, origin: Origin) -> None:
    root = tmp_path / "lfw-py"
    for name in ("Ann_One/Ann_One_0001.jpg", "Ann_One/Ann_One_0002.jpg", "Bo_Two/Bo_Two_0001.jpg"):
        picture(root / "lfw_funneled" / name)
    lines(root / "peopleDevTrain.txt", "1", "Ann_One\t2")
    lines(root / "peopleDevTest.txt", "1", "Bo_Two\t1")
    parts = lfw(origin).parts
    assert parts["train"].labels == ("Ann_One", "Ann_One")
    assert parts["test"].ids == ("Bo_Two/Bo_Two_0001.jpg",)


def street(root: Path, city: str, side: str, rows: list[tuple[str, float, float, bool]]) -> None:
    """One side of a city, as the published csv files have it: a nameless index first."""
    folder = root / "msls" / "train_val" / city / side
    raw = [
        f"{row},{key},12.5,55.6,90.0,2015-01-01,{pano}" for row, (key, *_, pano) in enumerate(rows)
    ]
    lines(folder / "raw.csv", ",key,lon,lat,ca,captured_at,pano", *raw)
    processed = [
        f"{row},{key},{east},{north},False,0,Forward,1"
        for row, (key, east, north, _) in enumerate(rows)
    ]
    head = ",key,easting,northing,night,control_panel,view_direction,unique_cluster"
    lines(folder / "postprocessed.csv", head, *processed)
    for key, *_ in rows:
        picture(folder / "images" / f"{key}.jpg")


@pytest.fixture
def streets(tmp_path: Path) -> Path:
    """MSLS's tree, of one city to learn from and one to be tested in."""
    for city in ("zurich", "cph"):
        street(
            tmp_path,
            city,
            "query",
            [("q1", 1000, 2000, False), ("q2", 5000, 2000, False), ("pano", 1000, 2000, True)],
        )
        street(
            tmp_path,
            city,
            "database",
            [("near", 1015, 2020, False), ("far", 1020, 2020, False), ("other", 9000, 0, False)],
        )
    return tmp_path


def test_streets_leave_out_panoramas_and_know_where_they_are(streets: Path) -> None:
    places = msls(Origin(streets, allow_partial=True))
    parts = places.official.parts
    assert [name.rsplit("/")[-1] for name in parts["query"].ids] == ["q1.jpg", "q2.jpg"]
    assert len(parts["train"]) == 5
    assert "without trondheim" in places.official.partial["MSLS, cities"]
    positions = coordinates(parts["query"], places.positions)
    np.testing.assert_allclose(positions[1] - positions[0], [4000, 0])


def test_a_city_that_is_missing_is_named(streets: Path) -> None:
    with pytest.raises(DatasetError, match=r"22 of 24 cities are missing \(trondheim"):
        msls(Origin(streets))


@pytest.mark.parametrize("packed", [False, True])
def test_characters_come_from_folders_or_archives(
    tmp_path: Path, origin: Origin, packed: bool
) -> None:
    home = tmp_path / "omniglot"
    for part, alphabet in (("background", "Greek"), ("evaluation", "Tengwar")):
        names = [f"{alphabet}/character01/0001_0{number}.png" for number in (1, 2)]
        for name in names:
            picture(home / f"images_{part}" / name)
        if packed:
            with tarfile.open(home / f"images_{part}.tar.xz", "w:xz") as archive:
                for name in names:
                    file = home / f"images_{part}" / name
                    archive.add(file, f"images_{part}/{name}")
                    file.unlink()
            for folder in ("character01", ""):
                (home / f"images_{part}" / alphabet / folder).rmdir()
            (home / f"images_{part}").rmdir()
    parts = omniglot(origin).parts
    assert set(parts["background"].labels) == {"Greek/character01"}
    assert parts["evaluation"].ids[0] == "Tengwar/character01/0001_01.png"
    assert parts["evaluation"].pixels(1).shape == (10, 12, 3)


def test_a_damaged_archive_is_named(tmp_path: Path, origin: Origin) -> None:
    home = tmp_path / "omniglot"
    home.mkdir()
    (home / "images_background.zip").write_bytes(io.BytesIO(b"nothing").read())
    with pytest.raises(DatasetError, match=r"images_background\.zip cannot be read"):
        omniglot(origin)


def test_cifar_without_its_files_says_what_it_wants(origin: Origin) -> None:
    with pytest.raises(DatasetError, match=r"cifar-10-batches-py is missing.*cs\.toronto\.edu"):
        cifar10(origin)


def test_mosaics_are_cut_row_by_row(tmp_path: Path, origin: Origin) -> None:
    home = tmp_path / "cifar10"
    home.mkdir()
    mosaic = np.zeros((64, 96, 3), dtype=np.uint8)  # two rows of three
    mosaic[32:, :32] = 7  # the fourth
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        Image.fromarray(mosaic).save(home / f"{name}.webp", lossless=True)
    codes = np.arange(6) % 10
    np.savez(home / "labels.npz", train_labels=np.tile(codes, 5), test_labels=codes)
    found = cifar10(origin)
    test = found.parts["test"]
    assert [int(test.pixels(row).max()) for row in range(6)] == [0, 0, 0, 7, 0, 0]
    assert test.labels[3] == "cat"
    assert found.partial["CIFAR-10, train"] == "30 of 50,000 images, 6 of 10 labels"


def test_nothing_is_downloaded_unless_asked(origin: Origin) -> None:
    with pytest.raises(DatasetError, match="let --download fetch"):
        mnist_like("MNIST", origin)
    assert svhn(origin) is None


@pytest.mark.slow
@pytest.mark.real_data
def test_the_real_files_are_as_published(data_dir: Path) -> None:
    origin = Origin(data_dir)
    assert cifar10(origin).partial == {}
    assert len(chars74k(origin)) == 5_000
