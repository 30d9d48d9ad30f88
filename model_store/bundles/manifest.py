"""A bundle: a directory with all data to answer queries; its name is a hash of its content.

::

    <bundle id>/
      manifest.json       description and SHA-256 of each file; canonical JSON
      manifest.sig        signature of the publisher (optional); see `signatures`
      encoder.onnx        images in, Gaussian embeddings out
      text_encoder.onnx … with tokenizer.json: texts in (optional)
      gallery.faiss …     index, directions, norms, variances, labels, items
      calibration.json …  the fitted calibration (optional)
      calibration_queries.npz, item_features.npz  data to fit the calibration again
      build_queries.npz   queries of the build, if a later calibration replaced them (optional)
      text_calibration.json …  the calibration of text queries
      samples/            example query images
      evaluation.json     evaluation on held-out queries

Before any file is opened, every byte is compared with the manifest, and the manifest is compared
with its own id. A bundle contains no pickle. In a directory of bundles, the file `CURRENT` contains
the id of the served bundle, and `PREVIOUS` the id of the bundle that was served before.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

from model_store.errors import BundleMismatch, BundleTampered
from model_store.files import PARTIAL, json_text, relative_name
from model_store.machine import usable_processors

SCHEMA_VERSION = 8
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig"
ENCODER_FILE = "encoder.onnx"
EVALUATION_FILE = "evaluation.json"
_NOT_LISTED = {MANIFEST_FILE, SIGNATURE_FILE, f".{SIGNATURE_FILE}{PARTIAL}"}
SAMPLES_FOLDER = "samples"
ID_LENGTH = 16
"""Number of hexadecimal digits of SHA-256 in a bundle's id: 64 bits, so collisions are
improbable."""


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """A query image that comes with the bundle.

    Attributes
    ----------
    id : name of the sample in URLs.
    file : path of the image in the bundle.
    caption : content of the image, for readers.
    belongs : whether the gallery contains a true match.
    """

    id: str
    file: str
    caption: str
    belongs: bool


@dataclass(frozen=True)
class Manifest:
    """The description of a bundle.

    Attributes
    ----------
    gallery : name, description, n_items, search settings, the index and its recall.
    encoder : fingerprint, posterior, preprocessing, dim, n_features. For an optional text encoder:
        fingerprint, context length, and a summary of its calibration.
    calibration : summary of the calibration; None if the bundle is not calibrated.
    metrics : results of an evaluation on queries that the calibration did not use; None without
        evaluation.
    samples : example query images.
    library_versions : versions of the libraries that built the bundle.
    files : path → ``sha256`` and ``bytes`` (size) of every file, except the manifest.
    """

    gallery: Mapping[str, Any]
    encoder: Mapping[str, Any]
    calibration: Mapping[str, Any] | None
    metrics: Mapping[str, Any] | None
    samples: tuple[SampleQuery, ...]
    library_versions: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @cached_property  # every answer contains the id
    def id(self) -> str:
        """The hash of all fields; it covers every file, because ``files`` has their digests."""
        return hashlib.sha256(_canonical(asdict(self))).hexdigest()[:ID_LENGTH]

    def to_json(self) -> bytes:
        """Return the content of the manifest file."""
        return self._bytes

    @cached_property  # used more than once
    def _bytes(self) -> bytes:
        return _canonical({"id": self.id, **asdict(self)})


def read_manifest(directory: Path, schemas: Container[int] = (SCHEMA_VERSION,)) -> Manifest:
    """Read the manifest in ``directory``, and compare every byte of the bundle with it.

    Raises
    ------
    BundleTampered : a file is missing, added or changed, or the manifest is changed.
    BundleMismatch : the schema version is not in ``schemas``.
    """
    manifest = parse_manifest((directory / MANIFEST_FILE).read_bytes(), directory.name, schemas)
    verify_files(directory, manifest)
    return manifest


def parse_manifest(
    content: bytes, bundle: str, schemas: Container[int] = (SCHEMA_VERSION,)
) -> Manifest:
    """Parse a manifest, and check its schema and its id.

    Parameters
    ----------
    bundle : name of the bundle, for error messages.

    Raises
    ------
    BundleTampered, BundleMismatch : see `read_manifest`.
    """
    try:
        version = json.loads(content)["schema_version"]
        if version not in schemas:
            raise BundleMismatch(
                f"The bundle {bundle} has schema version {ascii(version)[:20]}; this release reads "
                f"{SCHEMA_VERSION}. "
                + (
                    "Run `vouch-build upgrade DIR` on its directory of bundles."
                    if version in range(1, SCHEMA_VERSION)
                    else "Use the release that built the bundle, or a later release."
                )
            )
        written = _ManifestFile.model_validate_json(content)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(ascii(part).strip("'")[:80] for part in wrong["loc"] if part != "[key]")
        raise BundleTampered(
            f"{bundle}/{MANIFEST_FILE} is not a manifest: {place or 'it'}: "
            f"{wrong['msg'].removeprefix('Value error, ')}. Build the bundle again, or take it "
            "from a publisher whom you trust."
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleTampered(
            f"{bundle}/{MANIFEST_FILE} is not a manifest ({type(error).__name__}). Build the "
            "bundle again."
        ) from error
    manifest = written.manifest()
    try:
        is_whole = manifest.to_json() == content  # which includes the id
    except ValueError:  # for example NaN, which JSON does not have
        is_whole = False
    if not is_whole:
        raise BundleTampered(
            f"{bundle}/{MANIFEST_FILE} has been changed: its content does not have the hash "
            f"{written.id}. Build or copy the bundle again."
        )
    return manifest


def _file_name(name: str) -> str:
    if name in {MANIFEST_FILE, SIGNATURE_FILE}:
        raise ValueError(f"{name} cannot be listed")
    return relative_name(name)


def _sample_name(name: str) -> str:
    if not name.startswith(f"{SAMPLES_FOLDER}/") or not name.endswith(".png"):
        raise ValueError(f"a sample is a PNG file in {SAMPLES_FOLDER}/")
    return relative_name(name)


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _File(_Schema):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class _Sample(_Schema):
    id: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")
    file: Annotated[str, AfterValidator(_sample_name)]
    caption: str
    belongs: StrictBool


class _Gallery(_Schema, extra="allow"):
    name: str = Field(pattern=r"^[^\x00-\x1f\x7f]{1,255}$")
    description: str = ""
    n_items: int = Field(0, ge=0)


class _Encoder(_Schema, extra="allow"):
    fingerprint: str


class _ManifestFile(_Schema):
    """The strict schema of `MANIFEST_FILE`; an unknown key is an error."""

    id: str = Field(pattern=rf"^[0-9a-f]{{{ID_LENGTH}}}$")
    schema_version: int
    gallery: _Gallery
    encoder: _Encoder
    calibration: dict[str, Any] | None
    metrics: dict[str, Any] | None
    samples: list[_Sample]
    library_versions: dict[str, str]
    files: dict[Annotated[str, AfterValidator(_file_name)], _File]

    @model_validator(mode="after")
    def _lists_samples(self) -> Self:
        for sample in self.samples:
            if sample.file not in self.files:
                raise ValueError(f"the file of the sample {sample.id} is not listed")
        return self

    def manifest(self) -> Manifest:
        """Convert to a `Manifest`."""
        fields = self.model_dump(exclude={"id"}, exclude_unset=True)
        samples = tuple(SampleQuery(**sample) for sample in fields.pop("samples"))
        return Manifest(samples=samples, **fields)


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Compare every byte of ``directory`` with the manifest.

    Raises
    ------
    BundleTampered : a file is missing, added or changed.
    """
    present = set(content_files(directory))
    if present != set(manifest.files):
        missing = sorted(set(manifest.files) - present)
        added = sorted(present - set(manifest.files))
        raise BundleTampered(
            f"The files of the bundle {directory.name} differ from its manifest: "
            f"missing {missing}, added {added}. Build or copy the bundle again."
        )
    with ThreadPoolExecutor(usable_processors()) as pool:  # hashing releases Python's global lock
        found = pool.map(describe_shared, [directory / name for name in manifest.files])
        described = dict(zip(manifest.files, found, strict=True))
    for name, wanted in manifest.files.items():
        if described[name] != wanted:
            raise _differs(directory, name)


def verify_file(directory: Path, manifest: Manifest, name: str) -> None:
    """Compare one file of ``directory`` with the manifest, without the other files.

    Raises
    ------
    BundleTampered : the file is missing or changed, or the manifest does not list it.
    OSError : the file cannot be read.
    """
    path = directory / name
    if not path.exists() or describe_shared(path) != manifest.files.get(name):
        raise _differs(directory, name)


def _differs(directory: Path, name: str) -> BundleTampered:
    return BundleTampered(
        f"{directory.name}/{name} differs from its manifest: it was changed or damaged after the "
        "bundle was published. Build or copy the bundle again."
    )


def describe_shared(path: Path) -> dict[str, Any]:
    """Return the result of `describe_file`; cache it for a file with several links.

    A thousand galleries can link to one encoder file. The cached hash is used until the time stamp
    or the size changes. A hash is not cached if the file was written less than `SETTLED_S` ago,
    because another write could have the same time stamp.
    """
    found = path.lstat()
    if found.st_nlink == 1:
        return describe_file(path)
    mark = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    known = _SHARED_FILES.get(mark)
    if known is None:
        known = describe_file(path)
        if time.time() - found.st_mtime > SETTLED_S:
            _SHARED_FILES[mark] = known
    return known


_SHARED_FILES: dict[tuple[int, int, int, int], dict[str, Any]] = {}

SETTLED_S = 2.0
"""If two writes are at least this number of seconds apart, their time stamps differ on every file
system."""


def content_files(directory: Path) -> list[str]:
    """Return every file below ``directory`` except the manifest and its signature.

    The temporary file of an incomplete signature is also left out.
    """
    return [name for name in file_names(directory) if name not in _NOT_LISTED]


def file_names(directory: Path) -> list[str]:
    """Return every file below ``directory``, as POSIX paths; links are not followed."""
    paths = [path for path in directory.rglob("*") if path.is_symlink() or path.is_file()]
    return sorted(PurePosixPath(path.relative_to(directory)).as_posix() for path in paths)


def describe_file(path: Path) -> dict[str, Any]:
    """Return the digest and the size of a file, in the form of the manifest's ``files``."""
    if path.is_symlink():
        return {"sha256": "a link, not a file", "bytes": 0}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": digest, "bytes": file.tell()}


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json_text(value).encode()


HASHED_AGAIN_AFTER_S = 86_400.0
"""Seconds after which an unmodified file is hashed again, to find damage on the disk."""

_Mark = tuple[int, int, int] | None


class BundleFiles:
    """Checks that the files of an open bundle do not change.

    A check without hashing needs only a few system calls. A check hashes each file whose time stamp
    has changed. It also hashes at most one unmodified file: the file that was hashed least
    recently. This file is hashed only if its last hash is older than ``hashed_again_after_s``.

    Parameters
    ----------
    hashed_again_after_s : seconds after which an unmodified file is hashed again.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        hashed_again_after_s: float = HASHED_AGAIN_AFTER_S,
    ) -> None:
        self._directory, self._described = directory, manifest.files
        self._marks = {name: _mark(directory / name) for name in manifest.files}
        self._hashed_at = dict.fromkeys(manifest.files, time.monotonic())
        self._hashed_again_after_s = hashed_again_after_s
        self._hashing = threading.Lock()

    def changed(self) -> str | None:
        """Return the name of a file that differs from the manifest; None if all files agree."""
        for name, known in self._marks.items():
            if (known is None or _mark(self._directory / name) != known) and not self._whole(name):
                return name
        if not self._hashed_at or not self._hashing.acquire(blocking=False):
            return None  # another check is still hashing a large file
        try:
            name = min(self._hashed_at, key=self._hashed_at.__getitem__)
            due = time.monotonic() - self._hashed_at[name] >= self._hashed_again_after_s
            return name if due and not self._whole(name) else None
        finally:
            self._hashing.release()

    def _whole(self, name: str) -> bool:
        """Hash a file, and return whether it matches the manifest."""
        path = self._directory / name
        mark = _mark(path)
        try:
            same = describe_file(path) == self._described[name]
        except OSError:
            same = False
        self._marks[name] = mark if same else None
        self._hashed_at[name] = time.monotonic()
        return same


def _mark(path: Path) -> _Mark:
    """Return a value that changes when a file is written or replaced; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
