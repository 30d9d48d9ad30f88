"""The catalogue of a run, and what becomes of the images in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index_builder.calibration.item_queries import partnered
from index_builder.datasets.image_files import similar_labels
from index_builder.indexing.assemble import assemble
from index_builder.indexing.blocks import Entry, Failure, Place, parse_tolerance
from index_builder.indexing.catalogue import Catalogue
from index_builder.indexing.engines import Progress, Task, embed_catalogue
from index_builder.indexing.workdir import Shard, ShardStore, occupied
from model_store.errors import DatasetError, SourceUnavailable, TooManyBadImages
from model_store.gallery import IndexSettings
from tests.support.fakes import FakeEncoder

BAD = Failure("CorruptImage", "It is damaged.")
BOX = (1.0, 2.0, 3.5, 4.0)


def entries(n: int) -> list[Entry]:
    return [
        Entry(f"image {number}", Place(f"/{number}.png", None, number, 7), origin=f"line {number}")
        for number in range(n)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalogue.sqlite"


def test_metadata_that_no_file_could_hold_is_refused(path: Path) -> None:
    given = Entry("a", Place("/a.png", None, 0, 7), None, {"x": "\N{OWL}"}, "line 1")
    Catalogue(path, [given]).close()
    for wrong in ({"x": ["\ud83e"]}, {"\ud83e": 1}):
        with pytest.raises(DatasetError, match=r"line 1: '\\ud83e' in .* is no Unicode"):
            Catalogue(path, [replace(given, metadata=wrong)])


def test_entry_whose_id_breaks_the_rule_is_a_failure_of_its_block(path: Path) -> None:
    names = ["..", "a", "a/../b", "x" * 1024, "x" * 1025, "a\nb", "a\u202eb", "a/similar"]
    with closing(Catalogue(path, [Entry(one, Place("/a", None, 0, 7)) for one in names])) as found:
        [block] = found.blocks()
    assert block.ids == tuple(names)
    assert set(block.failures) == {*names} - {"a", "x" * 1024}
    assert {why.error for why in block.failures.values()} == {"InvalidId"}
    assert not any(why.passing for why in block.failures.values())


def test_entry_whose_label_group_or_source_breaks_the_rule_is_a_failure(path: Path) -> None:
    fine = Entry("fine", Place("/a", None, 0, 7), "x" * 200, group="x" * 300, source="Kamera ü")
    wrong = ["a\nb", "\u202eevil", "\a"]
    given = [replace(fine, id=f"label {n}", label=one) for n, one in enumerate([*wrong, "x" * 201])]
    given += [replace(fine, id=f"group {n}", group=one) for n, one in enumerate(wrong)]
    given += [replace(fine, id=f"source {n}", source=one) for n, one in enumerate(wrong)]
    with closing(Catalogue(path, [fine, *given])) as found:
        [block] = found.blocks()
    assert {name: why.error for name, why in block.failures.items()} == {
        one.id: f"Invalid{one.id.split()[0].title()}" for one in given
    }
    assert "The label must have at most 200 characters" in block.failures["label 3"].reason


def test_entries_come_back_in_blocks_in_their_order(path: Path) -> None:
    places = [
        Place("/a.png", 5, 0, 7),
        Place("https://i.org/b.png", None, 10, 0, BOX, "version 1"),
        Place("/c.png", None, -1, 0),
        Place("/d.png", None, 30, 0),
    ]
    labels = ["owl", "owl", "fox", None]
    given = [
        Entry(name, place, label, origin=name)
        for name, place, label in zip("dcba", places, labels, strict=True)
    ]
    with closing(Catalogue(path, given, block=3)) as catalogue:
        blocks = list(catalogue.blocks())
        assert [(block.number, block.ids) for block in blocks] == [(0, tuple("dcb")), (1, ("a",))]
        assert [place for block in blocks for place in block.places] == places
        assert catalogue.n_blocks == 2
        found = catalogue.contents
    assert (found.n_images, found.n_labelled, found.n_labels) == (4, 3, 2)
    assert (found.n_missing, found.n_bytes) == (1, 40)
    assert path.stat().st_mode & 0o777 == 0o600
    for n in (3, 4, 6, 7):
        with closing(Catalogue(path, entries(n), block=3)) as catalogue:
            assert catalogue.n_blocks == len(list(catalogue.blocks())) == (n + 2) // 3


def test_metadata_of_the_same_fields_is_written_the_same(path: Path) -> None:
    fields = {"price": 1, "colour": "red"}
    place = Place("/a.png", None, 1, 0)
    turned = dict(reversed(fields.items()))
    catalogue = Catalogue(path, [Entry("a", place, None, fields), Entry("b", place, None, turned)])
    catalogue.close()
    with closing(sqlite3.connect(path)) as connection:
        (written,) = connection.execute("SELECT DISTINCT metadata FROM entries").fetchall()
    assert written == ('{"colour": "red", "price": 1}',)


@pytest.mark.parametrize(("n_repeated", "ending"), [(5, r"image 4'"), (6, r"image 4' [^;]*; …\.")])
def test_ids_that_come_twice_are_named(path: Path, n_repeated: int, ending: str) -> None:
    wanted = rf"{n_repeated} ids belong to .*image 0' in line 0 and in line 0.*{ending}"
    with pytest.raises(DatasetError, match=wanted) as refused:
        Catalogue(path, [*entries(8), *entries(n_repeated), *entries(1)])
    assert str(refused.value).count(" in line ") == 2 * 5
    assert ("…" in str(refused.value)) == (n_repeated > 5)


def test_a_gallery_of_nothing_is_refused(tmp_path: Path) -> None:
    with occupied(tmp_path / "run") as work:
        work.begin(resume=False)
        catalogue = Catalogue(work.catalogue, entries(2))
        catalogue.close()
        with pytest.raises(sqlite3.ProgrammingError):
            list(catalogue.blocks())
        work.bundle.mkdir()  # of a run that was killed
        (work.bundle / "items.sqlite").touch()
        with pytest.raises(DatasetError, match="None of the images could be embedded"):
            assemble(work, 0, 4, "fingerprint", IndexSettings())


class SomeBad:
    """Embeds all images but those whose names are given; the source is lost after some blocks."""

    def __init__(self, bad: Iterable[str] = (), why: Failure = BAD, lost_after: int = 99) -> None:
        self.bad, self.why, self.lost_after = set(bad), why, lost_after
        self.numbers: list[int] = []

    def shards(self, tasks: Iterable[Task]) -> Iterator[Shard]:
        for block, digest in tasks:
            if len(self.numbers) == self.lost_after:
                raise SourceUnavailable("The bucket is gone.")
            self.numbers.append(block.number)
            names = tuple(name for name in block.ids if name not in self.bad)
            values, nothing = np.ones((len(names), 6), np.float32), ("",) * len(names)
            failures = {name: self.why for name in block.ids if name in self.bad}
            yield Shard(
                block.number, digest, names, values, values, (), nothing, failures,
                (b"",) * len(names),
            )  # fmt: skip

    def close(self) -> None: ...


class Run:
    """A run over ten images in blocks of two, and its progress."""

    def __init__(self, directory: Path) -> None:
        self.catalogue = Catalogue(directory / "catalogue.sqlite", entries(10), block=2)
        self.store, self.progress = ShardStore(directory), Progress(10)

    def __call__(self, engine: SomeBad, most: str = "0", preview_side: int | None = None) -> None:
        self.progress = Progress(10)
        tolerance = parse_tolerance(most)
        embed_catalogue(
            self.catalogue,
            self.store,
            FakeEncoder(),
            engine,
            tolerance,
            self.progress,
            preview_side,
        )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.catalogue.close()


def test_only_what_is_missing_is_embedded(run: Run) -> None:
    first, second, third = SomeBad(), SomeBad(), SomeBad()
    run(first)
    assert (first.numbers, run.progress.n_kept) == ([0, 1, 2, 3, 4], 0)
    run(second)
    assert (second.numbers, run.progress.n_kept, run.progress.n_done) == ([], 10, 10)
    run(third, preview_side=500)
    assert third.numbers == [0, 1, 2, 3, 4]


def test_a_run_ends_as_soon_as_too_many_images_are_bad(run: Run) -> None:
    bad = ["image 1", "image 2", "image 6"]
    run(SomeBad(bad), "3")
    assert (run.progress.n_embedded, run.progress.n_done) == (7, 10)
    with pytest.raises(TooManyBadImages, match=r"2 of 10 images .*, and at most 1 may fail"):
        run(SomeBad(), "1")  # of an earlier run
    for path in run.store.directory.glob("*"):
        if path.name != "catalogue.sqlite":
            path.unlink()
    engine = SomeBad(bad)
    with pytest.raises(TooManyBadImages, match=r"'image 1': It is damaged.*or raise --max-bad"):
        run(engine, "1")
    assert engine.numbers == [0, 1]


def test_images_that_are_too_large_say_which_options_allow_them(run: Run) -> None:
    with pytest.raises(TooManyBadImages, match=r"raise --max-pixels, --max-bytes or --max-bad"):
        run(SomeBad(["image 0"], Failure("ImageTooLarge", "It is large.")))


def test_a_source_that_is_lost_says_what_is_kept(run: Run) -> None:
    with pytest.raises(SourceUnavailable, match=r"gone\. 4 of 10 images are embedded and kept"):
        run(SomeBad(lost_after=2))
    rest = SomeBad()
    run(rest)
    assert rest.numbers == [2, 3, 4]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_equal_files_are_one_group(tmp_path: Path, *, same: bool, packed: bool) -> None:
    """Contents of one size that differ in the last byte only, in files or in one file."""
    contents = [bytes(5000) + bytes([0 if same else number]) for number in range(20)]
    places = []
    for number, content in enumerate(contents):
        path = tmp_path / ("packed" if packed else str(number))
        with path.open("ab") as file:
            places.append(Place(str(path), file.tell() if packed else None, 5001, 0))
            file.write(content)
    given = [Entry(str(n), place, f"label {n % 2}", {}) for n, place in enumerate(places)]
    with closing(Catalogue(tmp_path / "catalogue.sqlite", given)) as catalogue:
        labels, groups = catalogue.labels_and_groups()
    assert len(set(labels.tolist())) == 2
    assert len(set(groups.tolist())) == (1 if same else 20)
    assert partnered(labels, groups).sum() == (0 if same else 20)


def test_alike_labels_are_found_and_others_are_not(path: Path) -> None:
    labels = ["Cat", "cat", "cat ", "dog", "Katze", "caf\u00e9", "cafe\u0301", "a  b", "A b", None]
    given = [Entry(str(n), Place("/x", None, 1, 0), one) for n, one in enumerate(labels)]
    with closing(Catalogue(path, given)) as catalogue:
        assert similar_labels(catalogue.labels()) == [
            ["A b", "a  b"],
            ["Cat", "cat", "cat "],
            ["cafe\u0301", "caf\u00e9"],
        ]
