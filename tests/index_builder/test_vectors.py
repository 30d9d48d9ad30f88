from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest

from index_builder.vectors.images import VectorFile

KEYS = [bytes([number]) * 32 for number in range(5)]
VECTORS = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
VECTORS[0, :3] = [-0.0, np.inf, np.frombuffer(struct.pack("<I", 0x7FC00123), "<f4")[0]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "vectors.sqlite"


def test_vectors_come_back_bit_for_bit_in_another_process_too(path: Path) -> None:
    first = VectorFile(path)
    first.write("trunk", KEYS[:3], VECTORS[:3])
    first.close()
    again = VectorFile(path)
    found = again.read("trunk", KEYS)
    assert sorted(found) == sorted(KEYS[:3])
    for key, vector in zip(KEYS[:3], VECTORS[:3], strict=True):
        assert found[key].tobytes() == vector.tobytes()


def test_what_another_network_made_is_not_found(path: Path) -> None:
    file = VectorFile(path)
    file.write("one", KEYS, VECTORS)
    assert file.read("other", KEYS) == {}


@pytest.mark.parametrize("cut", [0, 40, 5_000])
def test_a_file_that_is_no_database_any_more_is_begun_anew(path: Path, cut: int) -> None:
    file = VectorFile(path)
    file.write("trunk", KEYS, VECTORS)
    file.close()
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[cut:])
    again = VectorFile(path)
    assert again.read("trunk", KEYS) == {}
    again.write("trunk", KEYS, VECTORS)
    assert len(again.read("trunk", KEYS)) == 5


def test_a_changed_value_is_not_believed(path: Path) -> None:
    file = VectorFile(path)
    file.write("trunk", KEYS, VECTORS)
    file.close()
    content = path.read_bytes()
    value = VECTORS[1].tobytes()
    assert content.count(value) == 1
    path.write_bytes(content.replace(value, value[:5] + bytes([value[5] ^ 1]) + value[6:]))
    assert sorted(VectorFile(path).read("trunk", KEYS)) == sorted({*KEYS} - {KEYS[1]})


def test_a_write_that_fails_leaves_nothing(path: Path) -> None:
    file = VectorFile(path)
    with pytest.raises(ValueError, match="zip"):  # fewer vectors than contents
        file.write("trunk", KEYS, VECTORS[:3])
    assert file.read("trunk", KEYS) == {}
    file.write("trunk", KEYS, VECTORS)
    assert len(file.read("trunk", KEYS)) == 5


def test_where_room_is_short_other_networks_vectors_go_first(path: Path) -> None:
    file = VectorFile(path, most_bytes=6 * 7 * 4)
    file.write("old", KEYS, VECTORS)
    file.write("new", KEYS[:4], VECTORS[:4])
    assert file.read("old", KEYS) == {}
    file.write("new", KEYS[4:], VECTORS[4:])
    assert len(file.read("new", KEYS)) == 5
    more = [bytes([number]) * 32 for number in range(5, 8)]
    file.write("new", more, VECTORS[:3])
    assert file.read("new", more) == {}
    file.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM vectors").fetchone() == (5,)
