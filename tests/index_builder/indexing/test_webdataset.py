"""Archives as webdataset lays them out: files beside an image that say more of it."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.prepare import bytes_of
from index_builder.indexing.sources import open_source
from model_store.errors import DatasetError
from model_store.images import ImageLimits
from tests.index_builder.indexing.test_data_set_sources import entries, png, striped


class TestWebdataset:
    def write(self, folder: Path, members: Mapping[str, bytes]) -> Path:
        path = folder / "shard-000.tar"
        with tarfile.open(path, "w") as file:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
        return path

    def test_sidecars_say_more_of_an_image(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path,
            {
                "0001.cls": b"owl\n",
                "0001.png": png(striped()),
                "0001.json": b'{"year": 1999, "label": "bird"}',
                "0002.png": png(striped()),
                "0002.json": b'{"label": "fox", "n": [1]}',
                "0002.txt": b" a fox in snow ",
                "0003.left.png": png(striped()),
                "0003.right.png": png(striped()),
                "0003.cls": b"7",
                "sub/0001.png": png(striped()),
                "dataset.json": b'{"not": "of an image"}',
            },
        )
        found = entries(path, tmp_path)
        assert [(one.id, one.label, dict(one.metadata)) for one in found] == [
            ("0001.png", "owl", {"year": 1999}),
            ("0002.png", "fox", {"n": [1], "caption": "a fox in snow"}),
            ("0003.left.png", "7", {}),
            ("0003.right.png", "7", {}),
            ("sub/0001.png", "sub", {}),
        ]
        for one in found:
            assert bytes_of(one.place, ImageLimits()) == png(striped())
        unlabelled = entries(path, tmp_path, labelled=False)
        assert [one.label for one in unlabelled] == [None] * 5
        assert unlabelled[0].metadata == {"year": 1999, "label": "owl"}

    def test_names_with_dots_have_their_own_sidecars(self, tmp_path: Path) -> None:
        members = {}
        for number, label in enumerate(("owl", "fox", "emu")):
            members[f"IMG_2020.0{number}.png"] = png(striped())
            members[f"IMG_2020.0{number}.cls"] = label.encode()
        members |= {"IMG_2020.03.png": png(striped()), "IMG_2020.04.cls": b"eel"}
        members |= {"IMG_2020.json": b'{"year": 2020}'}
        left_out = LeftOut()
        source = open_source(self.write(tmp_path, members))
        found = list(source.entries(tmp_path, left_out))
        assert [one.label for one in found] == ["owl", "fox", "emu", None]
        assert [one.metadata for one in found] == [{"year": 2020}] * 4
        assert [(one.name, one.reason) for one in left_out.files] == [
            ("IMG_2020.04.cls", Reason.no_image)
        ]

    def test_a_field_name_may_follow_the_name_of_the_sample(self, tmp_path: Path) -> None:
        members = {"1.left.png": b"1", "1.right.png": b"1", "1.kind.cls": b"owl"}
        assert [one.label for one in entries(self.write(tmp_path, members), tmp_path)] == [
            "owl",
            "owl",
        ]

    def test_two_sidecars_of_one_suffix_are_refused(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, {"1.a.cls": b"owl", "1.b.cls": b"fox", "1.png": b"1"})
        with pytest.raises(DatasetError, match=r"two \.cls files: 1\.a\.cls and 1\.b\.cls"):
            entries(path, tmp_path)

    def test_sidecars_that_are_not_next_to_their_images_are_named(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, {"1.png": b"1", "2.png": b"2", "1.cls": b"a", "2.cls": b"b"})
        left_out = LeftOut()
        list(open_source(path).entries(tmp_path, left_out))
        (sentence,) = left_out.sentences
        assert "sidecar files without an image: 2: 2 .cls (1.cls, 2.cls)" in sentence
        assert "Pack each image next to its sidecar files" in sentence

    @pytest.mark.parametrize("top", ["", "photographs/", "./photographs/", "/home/me/photographs/"])
    def test_labels_are_sub_folders_of_the_folder_of_all_images(
        self, top: str, tmp_path: Path
    ) -> None:
        names = ["owl/1.png", "owl/deep/2.png", "fox/1.png"]
        members = {f"{top}{name}": b"1" for name in names} | {"README": b"", "._photographs": b""}
        found = entries(self.write(tmp_path, members), tmp_path)
        assert [one.label for one in found] == ["owl", "owl", "fox"]
        assert [one.id for one in found] == [f"{top}{name}".removeprefix("./") for name in names]

    def test_other_files_and_what_is_no_file_are_left_out(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path, {"1.png": b"1", "1.md": b"# of it", "2.png": b"2", "3.json": b"{"}
        )
        with tarfile.open(path, "a") as file:
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
                member = tarfile.TarInfo(f"{kind.decode()}.png")
                member.type, member.linkname = kind, "1.png"
                file.addfile(member)
        found = entries(path, tmp_path)
        assert [(one.id, one.metadata, one.place.path) for one in found] == [
            ("1.png", {}, str(path)),
            ("2.png", {}, str(path)),
        ]

    def test_a_disk_that_fails_is_no_damaged_archive(self, tmp_path: Path) -> None:
        source = open_source(self.write(tmp_path, {"1.png": b"1"}))
        (tmp_path / "shard-000.tar").unlink()
        with pytest.raises(FileNotFoundError):
            list(source.entries(tmp_path, LeftOut()))

    def test_an_image_in_no_folder_that_nothing_is_said_of_has_no_label(
        self, tmp_path: Path
    ) -> None:
        members = {"1.png": b"1", "2.txt": b"x" * 2**20, "2.png": b"2"}
        for others in ({}, {"3.txt": b"x" * (2**20 + 1)}):
            found = entries(self.write(tmp_path, {**members, **others, "3.png": b"3"}), tmp_path)
            assert [one.label for one in found] == [None] * 3
            assert [list(one.metadata) for one in found] == [[], ["caption"], []]

    def test_it_may_end_with_the_last_byte_of_its_last_image(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, {"1.png": b"x" * 512})
        path.write_bytes(path.read_bytes()[:1024])
        assert [one.place.size for one in entries(path, tmp_path)] == [512]
        path.write_bytes(path.read_bytes()[:1023])
        with pytest.raises(DatasetError, match=r"not a complete tar file \(it ends within 1.png"):
            entries(path, tmp_path)

    def test_damaged_header_is_refused(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, {f"{number}.png": b"x" * 512 for number in range(3)})
        whole = path.read_bytes()
        for damaged in (whole[:1024] + b"?" + whole[1025:], whole[:1025]):
            path.write_bytes(damaged)
            said = r"not a complete tar file \(the header at byte 1024 is damaged\)\. Copy it again"
            with pytest.raises(DatasetError, match=said):
                entries(path, tmp_path)

    @pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
    def test_joined_archives_are_refused(self, suffix: str, tmp_path: Path) -> None:
        whole = self.write(tmp_path, {"1.png": b"1"}).read_bytes()
        path = tmp_path / f"joined.{suffix}"
        pack = gzip.compress if suffix == "tar.gz" else bytes
        path.write_bytes(pack(whole) + pack(whole))
        with pytest.raises(DatasetError, match=r"several archives .* --ignore-zeros -xf joined"):
            entries(path, tmp_path)
        path.write_bytes(pack(whole + b"no archive" * 100))
        assert [one.id for one in entries(path, tmp_path)] == ["1.png"]

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("1.json", b"{", r"1.json is not JSON .*\. Correct it, or leave it out"),
            ("1.json", b"[" * 9999, "1.json is not JSON"),
            ("1.json", b"[1]", "wanted an object of metadata"),
            ("1.json", b'{"label": {"a": 1}}', "label is"),
            ("1.json", b'{"a": NaN}', "is not JSON"),
            ("1.json", b'{"Label": "a"}', "did you mean `label`"),
            ("1.txt", b"\xff\xfe\x00", "1.txt is not UTF-8"),
        ],
    )
    def test_what_is_none_is_said(
        self, name: str, content: bytes, reason: str, tmp_path: Path
    ) -> None:
        path = self.write(tmp_path, {"1.png": png(striped()), name: content})
        with pytest.raises(DatasetError, match=reason):
            entries(path, tmp_path)
