"""Reads Parquet files that contain images, for example data sets of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index_builder.datasets.image_files import LeftOut, Reason, files_below, is_system_file
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.archive import unpacking
from index_builder.indexing.sources.manifest import entry_of, read_box, without_label
from index_builder.indexing.sources.places import MISSING
from index_builder.vectors.table import opened_parquet
from model_store.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

UNPACKED = ".images"
_AT_ONCE = 64
"""Number of rows to read in one step. Each row contains an image."""


@dataclass(frozen=True, slots=True)
class ParquetImages:
    """The rows of one or more Parquet files; each row contains an image.

    The image column contains bytes, or ``{bytes, path}`` as the library `datasets` writes it. Other
    columns are read as in a manifest. The numbers of a ``ClassLabel`` column become names. An
    item's id is the row's ``id``, else the image's ``path``, else the name of the file and the
    number of the row.

    Attributes
    ----------
    paths : the Parquet files, in order.
    labelled : if True, labels define the classes; if False, labels are stored as metadata.
    folder : folder of the files; all other files in the folder are reported as left out. None if
        the source is a file.
    """

    paths: Sequence[Path]
    labelled: bool = True
    folder: Path | None = None

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each row; unpack all images to one file, for random access.

        Raises
        ------
        DatasetError : a file is not Parquet, or has no image column.
        """
        unpacked = self._unpacked(scratch)
        self._note_others(left_out)
        start = 0
        for path in self.paths:
            changed_ns = path.stat().st_mtime_ns
            for number, (fields, data, name) in enumerate(_rows(path)):
                origin = f"{path.name}, row {number}"
                box = read_box(fields.get("bbox"), origin)
                place = Place(str(unpacked), start, len(data) or MISSING, changed_ns, box)
                start += len(data)
                entry = entry_of(fields, origin, place, name or f"{path.stem}#{number}")
                yield entry if self.labelled else without_label(entry)

    def _note_others(self, left_out: LeftOut) -> None:
        """Record the other files of the folder as left out."""
        if self.folder is None:
            return
        read = {path.relative_to(self.folder).as_posix() for path in self.paths}
        for name in files_below(self.folder, self.folder, left_out):
            if name not in read:
                system = is_system_file(name)
                left_out.add(name, Reason.system_file if system else Reason.beside_tables)

    def _unpacked(self, scratch: Path) -> Path:
        """Return a file with the images of all rows, in order.

        The name of the file is a hash of the inputs. The file is complete before the first entry is
        yielded, because a decoder can then read it.
        """
        stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        digest = hashlib.sha256(repr(stamps).encode()).hexdigest()
        unpacked = scratch / f"{digest[:16]}{UNPACKED}"
        if unpacked.exists():
            return unpacked
        for left in scratch.glob(f"*{UNPACKED}"):  # made from older inputs
            left.unlink()
        with unpacking(unpacked, ", ".join(path.name for path in self.paths[:3])) as write:
            for path in self.paths:
                for _, data, _ in _rows(path):
                    write(data)
        return unpacked


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], bytes, str | None]]:
    """Yield each row: the fields without the image, the image's bytes, and the image's name."""
    with opened_parquet(path) as opened:
        schema = opened.schema_arrow
        column = image_column(schema)
        if column is None:
            raise DatasetError(
                f"{path.name} has no image column; its columns are {', '.join(schema.names)}."
            )
        classes = _class_names(schema)
        row = 0
        for batch in opened.iter_batches(_AT_ONCE):
            for fields in batch.to_pylist(maps_as_pydicts="strict"):
                data, name = _image(fields.pop(column))
                named = {
                    one: _class_name(classes.get(one), value, f"{path.name}, row {row}: {one!r}")
                    for one, value in fields.items()
                }
                row += 1
                yield named, data, name


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted.

    If the folder has no Parquet files, the Parquet files of its sub-folder ``data`` are returned.
    """
    for pattern in ("*.parquet", "data/*.parquet"):
        found = sorted(path for path in folder.glob(pattern) if not is_system_file(path.name))
        if found:
            return found
    return []


def holds_images(path: Path) -> bool:
    """Return whether a Parquet file has a column of images.

    Raises
    ------
    DatasetError : see `opened_parquet`.
    """
    with opened_parquet(path) as opened:
        return image_column(opened.schema_arrow) is not None


def image_column(schema: pa.Schema) -> str | None:
    """Return the name of the image column; None for a manifest, which has a column ``path``."""
    from pyarrow import types  # noqa: PLC0415 - an extra

    def holds(kind: pa.DataType) -> bool:
        if not types.is_struct(kind):
            return bool(types.is_binary(kind) or types.is_large_binary(kind))
        parts = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        return "bytes" in parts and holds(parts["bytes"])

    if "path" in schema.names:
        return None
    found = [field.name for field in schema if holds(field.type)]
    return "image" if "image" in found else next(iter(found), None)


def _image(value: object) -> tuple[bytes, str | None]:
    """Return the bytes of an image (empty for a missing image), and the image's name."""
    if isinstance(value, dict):
        name = value.get("path")
        return value.get("bytes") or b"", None if name is None else str(name)
    return bytes(value) if isinstance(value, bytes) else b"", None


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return, by column, the class names of each ``ClassLabel`` column of `datasets`."""
    written = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(written)["info"]["features"] if written else {}
        return {
            name: [str(one) for one in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _class_name(names: Sequence[str] | None, value: Any, origin: str) -> Any:  # noqa: ANN401 - a field's
    """Return the name of a class; None for −1, with which `datasets` marks an unknown class.

    Raises
    ------
    DatasetError : no class has the number.
    """
    if names is None or not isinstance(value, int) or value == -1:
        return None if names is not None and value == -1 else value
    if not 0 <= value < len(names):
        raise DatasetError(
            f"{origin} is class {value}, but the column has {len(names)} class names. "
            "Correct the number, or add the name."
        )
    return names[value]
