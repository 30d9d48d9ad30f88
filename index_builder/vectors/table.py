"""Tables of vectors that another system computed from images.

A ``.npy`` file has only the vectors. A ``.npz`` file has the arrays ``mean``, ``variance`` and
``features``. Parquet and Arrow files have columns with these names, and columns of metadata.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from index_builder.vectors.images import Vector
from model_store.encoder.contract import EncoderInput, VectorInput
from model_store.errors import DatasetError
from model_store.installation import how_to_install

VECTOR_SUFFIXES = (".npy", ".npz", ".parquet", ".arrow", ".feather")

AT_ONCE = 4_096
"""Number of rows in a batch: 32 MB for vectors of 2,048 numbers."""

MOST_NUMBERS = 16_384
"""Maximum length of mean, variance and features; the service has the same maximum for a query."""

PARTS = ("mean", "variance", "features")
_COLUMN = "vector"
"""Another name for the mean, used in tables without variance and features."""

NOT_FOR_PYTHON = (OverflowError, KeyError)
"""Errors of pyarrow for a date outside Python's range, and for a duplicate key in a map."""

Fields = Mapping[str, Any]
Arrays = Mapping[str, NDArray[Any]]
Chunk = tuple[Arrays, list[Fields] | None]
"""A batch of rows: an array for each part, and the metadata of each row."""


@dataclass(frozen=True, slots=True)
class VectorTable:
    """N rows of vectors in a file.

    Attributes
    ----------
    path : path of the file.
    sizes : lengths of the parts, in the order of `PARTS`; 0 for a missing part.
    chunks : function that reads the file from its beginning, in batches of rows.
    """

    path: Path
    sizes: tuple[int, int, int]
    chunks: Callable[[], Iterator[Chunk]]

    def described(self, made_by: str) -> VectorInput:
        """Return the `VectorInput` of these vectors; ``made_by`` is the name of the encoder."""
        dim, n_variance, n_features = self.sizes
        return VectorInput(made_by, dim, n_variance > 0, n_features or None)

    def require(self, taken: EncoderInput) -> None:
        """Raise an error if an encoder that takes the input ``taken`` does not accept the rows.

        Raises
        ------
        DatasetError
        """
        if not isinstance(taken, VectorInput):
            raise DatasetError(
                f"{self.path.name} contains vectors, but the encoder takes images. Instead of "
                "--encoder, use --encoder-name NAME with the name of the vectors' encoder."
            )
        if taken.sizes != self.sizes:
            raise DatasetError(
                f"{self.path.name} has {self.sizes} numbers of mean, variance and features; the "
                f"encoder of {taken.made_by!r} takes {taken.sizes}."
            )

    def rows(self) -> Iterator[tuple[Vector, list[Fields] | None]]:
        """Yield rows (n, sum of sizes) as `VectorInput` defines them, and the metadata of each row.

        Raises
        ------
        DatasetError : a row and the first row have different lengths.
        """
        for arrays, fields in self.chunks():
            parts = [arrays[name] for name in PARTS if name in arrays]
            yield np.hstack(parts).astype("<f4"), fields


def open_table(path: Path) -> VectorTable:
    """Open the table at ``path`` and check its first rows.

    Raises
    ------
    DatasetError : the file is not a table of vectors.
    """
    suffix = path.suffix.lower()
    if suffix not in VECTOR_SUFFIXES:
        raise DatasetError(
            f"{path.name} is no table of vectors. Wanted: {', '.join(VECTOR_SUFFIXES)}."
        )
    if not path.is_file():
        raise DatasetError(f"{path} does not exist. Name a table of vectors.")
    if suffix == ".npy":
        arrays = {PARTS[0]: _of_npy(path)}
        return VectorTable(path, _sizes(path, arrays), partial(_slices, arrays))
    if suffix == ".npz":
        return VectorTable(path, _sizes(path, _heads(path)), partial(_of_npz, path))
    chunks = partial(_of_arrow, path)
    first = next(chunks(), None)
    if first is None:
        raise DatasetError(f"{path.name} has no rows. Add vectors.")
    return VectorTable(path, _sizes(path, first[0]), chunks)


def holds_vectors(path: Path) -> bool:
    """Return whether a table has a column of vectors; False if there is no Parquet file.

    In a Parquet file with a column ``path``, a column of single numbers is metadata.

    Raises
    ------
    DatasetError : see `opened_parquet`.
    """
    if path.suffix.lower() not in VECTOR_SUFFIXES:
        return False
    if path.suffix.lower() != ".parquet":
        return True
    if not path.is_file():
        return False
    with opened_parquet(path) as file:
        schema = file.schema_arrow
        columns = [schema.field(name) for name in (PARTS[0], _COLUMN) if name in schema.names]
        # Only nested types, such as lists, have fields.
        return any(one.type.num_fields or "path" not in schema.names for one in columns)


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file with pyarrow, to read its schema and its rows.

    Raises
    ------
    DatasetError : pyarrow is not installed, or the file is damaged or not a Parquet file, or a
        value does not fit into a type of Python.
    OSError : the disk cannot be read.
    """
    arrow = _arrow(path)
    try:
        with arrow.parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # pyarrow's own errors have no number
            raise
        why = " ".join(str(error).split())  # of several lines
        raise DatasetError(
            f"{path.name} is not a Parquet file, or is truncated or damaged ({why}). Copy it again."
        ) from error
    except NOT_FOR_PYTHON as error:
        raise DatasetError(
            f"{path.name}: a value cannot be read ({error}). Leave its column out."
        ) from error


def _of_npy(path: Path) -> NDArray[Any]:
    """Return the mean (N, size) of a ``.npy`` file as a memory map.

    Raises
    ------
    DatasetError : the file is damaged or not a NumPy file.
    """
    with _reading(path):
        loaded: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise `DatasetError` for a file that is damaged or not a NumPy file."""
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = str(error)
        if "allow_pickle" in why:  # the advice of NumPy would run code in the file
            why = "it has Python objects, or is another kind of file"
        raise DatasetError(f"{path.name} is no NumPy file, or is truncated ({why}).") from error


def _heads(path: Path) -> Mapping[str, ArrayHeader]:
    """Return the headers of the arrays of a ``.npz`` file, without reading the arrays.

    Raises
    ------
    DatasetError : the file is no ``.npz`` file, or has no mean.
    """
    with _reading(path), zipfile.ZipFile(path) as archive:
        return {part: _head(file) for part, file in _members(path, archive).items()}


def _of_npz(path: Path) -> Iterator[Chunk]:
    """Yield the rows of a ``.npz`` file in batches.

    Raises
    ------
    DatasetError : the file is damaged.
    """
    with _reading(path), zipfile.ZipFile(path) as archive:
        files = _members(path, archive)
        for rows in zip(*map(_rows_of, files.values()), strict=True):
            yield dict(zip(files, rows, strict=True)), None


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, IO[bytes]]:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    given = {PARTS[0] if name == _COLUMN else name: name for name in names}
    if PARTS[0] not in given:
        raise DatasetError(
            f"{path.name} has the arrays {', '.join(map(repr, given)) or 'none'}. Wanted: "
            "'mean', optionally 'variance' and 'features'."
        )
    return {part: archive.open(f"{given[part]}.npy") for part in PARTS if part in given}


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """The header of an array in a file.

    Attributes
    ----------
    by_columns : whether the array is in column-major (Fortran) order.
    """

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]


def _head(file: IO[bytes]) -> ArrayHeader:
    """Read the header of an array."""
    if np.lib.format.read_magic(file) == (1, 0):
        return ArrayHeader(*np.lib.format.read_array_header_1_0(file))
    return ArrayHeader(*np.lib.format.read_array_header_2_0(file))


def _rows_of(file: IO[bytes]) -> Iterator[NDArray[Any]]:
    """Yield the rows (N, size) of an array in a file, in batches."""
    head = _head(file)
    n, size = head.shape
    if head.by_columns:
        whole = np.frombuffer(file.read(), head.dtype).reshape(size, n).T
        yield from (whole[start : start + AT_ONCE] for start in range(0, n, AT_ONCE))
        return
    for start in range(0, n, AT_ONCE):
        n_rows = min(AT_ONCE, n - start)
        data = file.read(n_rows * size * head.dtype.itemsize)
        yield np.frombuffer(data, head.dtype).reshape(n_rows, size)


def _slices(arrays: Arrays) -> Iterator[Chunk]:
    for start in range(0, len(arrays[PARTS[0]]), AT_ONCE):
        yield {name: array[start : start + AT_ONCE] for name, array in arrays.items()}, None


def _of_arrow(path: Path) -> Iterator[Chunk]:
    """Yield the rows of a Parquet or Arrow file in batches."""
    arrow = _arrow(path)
    n_before = 0
    try:
        for batch in _batches(path, arrow):
            names = [name for name in batch.schema.names if name in (*PARTS, _COLUMN)]
            arrays = {
                PARTS[0] if name == _COLUMN else name: _matrix(path, batch[name], name, n_before)
                for name in names
            }
            if PARTS[0] not in arrays:
                raise DatasetError(
                    f"{path.name} has the columns {', '.join(map(repr, batch.schema.names))}. "
                    "Wanted: 'vector' or 'mean', optionally 'variance' and 'features'."
                )
            yield arrays, batch.drop_columns(names).to_pylist(maps_as_pydicts="strict")
            n_before += batch.num_rows
    except (arrow.ArrowException, OSError, *NOT_FOR_PYTHON, ValueError, TypeError) as error:
        raise DatasetError(f"{path.name} cannot be read, or is truncated ({error}).") from error


def _batches(path: Path, arrow: Any) -> Iterator[Any]:  # noqa: ANN401 - pyarrow has no types
    if path.suffix.lower() == ".parquet":
        with opened_parquet(path) as file:
            yield from file.iter_batches(AT_ONCE)
        return
    with arrow.memory_map(str(path)) as source:
        try:
            reader = arrow.ipc.open_file(source)
        except arrow.ArrowInvalid:  # Arrow's stream format in a file
            source.seek(0)
            yield from arrow.ipc.open_stream(source)
        else:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _matrix(path: Path, column: Any, name: str, n_before: int) -> NDArray[Any]:  # noqa: ANN401
    """Return a column of lists as a matrix.

    Raises
    ------
    DatasetError : a row has no list, or its list and the list of the first row have different
        lengths.
    """
    rows = column.to_pylist()
    size = len(rows[0]) if rows and isinstance(rows[0], list) else 0
    for number, row in enumerate(rows, n_before + 1):
        if not isinstance(row, list) or len(row) != size or size == 0:
            found = f"{len(row)} numbers" if isinstance(row, list) else repr(row)
            raise DatasetError(
                f"{path.name}, row {number}: {name} has {found}; wanted a list of numbers, "
                f"with equal length in all rows{f' ({size})' if size else ''}."
            )
    return np.array(column.flatten(), dtype=np.float64).reshape(len(rows), size)


def _arrow(path: Path) -> Any:  # noqa: ANN401 - pyarrow has no types
    try:
        for name in ("pyarrow.ipc", "pyarrow.parquet"):
            import_module(name)
    except ImportError as error:
        raise DatasetError(
            f"Reading {path.name} needs pyarrow. {how_to_install('parquet')}"
        ) from error
    return import_module("pyarrow")


def _sizes(
    path: Path, arrays: Mapping[str, NDArray[Any]] | Mapping[str, ArrayHeader]
) -> tuple[int, int, int]:
    """Return the lengths of the parts.

    Raises
    ------
    DatasetError : a part is not a numeric matrix, or its shape does not match the other parts.
    """
    n = (*arrays[PARTS[0]].shape, 0)[0]
    for name, array in arrays.items():
        shape, kind = array.shape, array.dtype.kind
        if len(shape) != 2 or kind not in "fiu" or shape[0] != n or n == 0:
            raise DatasetError(
                f"{path.name}: {name} has the shape {array.shape} of {array.dtype}; wanted numbers "
                f"in rows and columns, a row for each of {n:,} items."
            )
        if not 1 <= array.shape[1] <= MOST_NUMBERS:
            raise DatasetError(
                f"{path.name}: {name} has {array.shape[1]:,} numbers a row; wanted 1 to "
                f"{MOST_NUMBERS:,}."
            )
    dim = arrays["mean"].shape[1]
    n_variance = arrays["variance"].shape[1] if "variance" in arrays else 0
    if n_variance not in {0, dim}:
        raise DatasetError(
            f"{path.name}: the variance has {n_variance} numbers a row and the mean {dim}; wanted "
            "equal numbers."
        )
    return dim, n_variance, arrays["features"].shape[1] if "features" in arrays else 0
