"""Parquet files with the images in them, such as a data set of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index_builder.datasets.image_files import LeftOut, Reason, files_below, is_system_file
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.manifest import entry_of, read_box, without_label
from index_builder.indexing.sources.places import MISSING
from index_builder.indexing.sources.unpacking import unpacking
from index_builder.vectors.table import NOT_FOR_PYTHON
from model_store.errors import DatasetError
from model_store.installation import how_to_install

if TYPE_CHECKING:
    import pyarrow as pa

UNPACKED = ".images"
_AT_ONCE = 64
"""Rows that are read together; each holds an image."""


@dataclass(frozen=True, slots=True)
class ParquetImages:
    """The rows of one or several Parquet files, each with an image.

    The image is a column of bytes, or of ``{bytes, path}`` as `datasets` writes it. Other columns
    mean what they mean in a manifest; numbers of a ``ClassLabel`` become its names. The id is the
    row's ``id``, else the image's ``path``, else the file's name and the number of the row.

    Attributes
    ----------
    paths : of the files, in their order.
    labelled : whether labels are used as labels; else they are metadata.
    folder : the folder that was named, whose other files are left out; None of named files.
    """

    paths: Sequence[Path]
    labelled: bool = True
    folder: Path | None = None

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """One entry for each row; images are unpacked to one file, to be read at any place.

        Raises
        ------
        DatasetError : a file is no Parquet, or has no column of images.
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
        """Note the files that lie beside those that are read."""
        if self.folder is None:
            return
        read = {path.relative_to(self.folder).as_posix() for path in self.paths}
        for name in files_below(self.folder, self.folder, left_out):
            if name not in read:
                system = is_system_file(name)
                left_out.add(name, Reason.system_file if system else Reason.beside_tables)

    def _unpacked(self, scratch: Path) -> Path:
        """The images of all rows, one after the other, in a file that is named by their origin.

        It is whole before the first entry is given, which may be read at once.
        """
        stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        digest = hashlib.sha256(repr(stamps).encode()).hexdigest()
        unpacked = scratch / f"{digest[:16]}{UNPACKED}"
        if unpacked.exists():
            return unpacked
        for left in scratch.glob(f"*{UNPACKED}"):  # of files that have changed since, or are gone
            left.unlink()
        with unpacking(unpacked, ", ".join(path.name for path in self.paths[:3])) as write:
            for path in self.paths:
                for _, data, _ in _rows(path):
                    write(data)
        return unpacked


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], bytes, str | None]]:
    """Give the other fields, the image and its name of each row of one file."""
    parquet, error_type = _pyarrow(path)
    try:
        with parquet.ParquetFile(path) as opened:
            schema = opened.schema_arrow
            column = image_column(schema)
            if column is None:
                raise DatasetError(
                    f"{path.name} has no column of images; it has {', '.join(schema.names)}."
                )
            classes = _class_names(schema)
            for batch in opened.iter_batches(_AT_ONCE):
                for fields in batch.to_pylist(maps_as_pydicts="strict"):
                    data, name = _image(fields.pop(column))
                    named = {one: _class_name(classes, one, fields[one]) for one in fields}
                    yield named, data, name
    except error_type as error:
        raise DatasetError(f"{path.name} is not a whole Parquet file ({error}).") from error
    except NOT_FOR_PYTHON as error:
        raise DatasetError(
            f"{path.name}: a value cannot be read ({error}). Leave its column out."
        ) from error


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a data set's folder, in it or in its folder ``data``, by name."""
    for pattern in ("*.parquet", "data/*.parquet"):
        found = sorted(path for path in folder.glob(pattern) if not is_system_file(path.name))
        if found:
            return found
    return []


def holds_images(path: Path) -> bool:
    """Return whether a Parquet file has a column of images.

    Raises
    ------
    DatasetError : it is no Parquet file.
    """
    parquet, error_type = _pyarrow(path)
    try:
        return image_column(parquet.read_schema(path)) is not None
    except error_type as error:
        raise DatasetError(f"{path.name} is not a Parquet file ({error}).") from error


def image_column(schema: pa.Schema) -> str | None:
    """Return the name of the column that holds images; None of a manifest, which has paths."""
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
    """Return the bytes of an image, none of a missing one, and its name."""
    if isinstance(value, dict):
        name = value.get("path")
        return value.get("bytes") or b"", None if name is None else str(name)
    return bytes(value) if isinstance(value, bytes) else b"", None


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of each column that is a ``ClassLabel`` of `datasets`."""
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


def _class_name(classes: Mapping[str, Sequence[str]], column: str, value: Any) -> Any:  # noqa: ANN401 - a field's
    names = classes.get(column)
    if names is None or not isinstance(value, int) or not 0 <= value < len(names):
        return value
    return names[value]


def _pyarrow(path: Path) -> tuple[Any, type[Exception]]:
    """Return pyarrow's module for Parquet, and its error."""
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DatasetError(
            f"Reading {path.name} needs pyarrow. {how_to_install('parquet')}"
        ) from error
    return parquet, ArrowException
