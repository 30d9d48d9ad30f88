"""An opened bundle: encoder, gallery and calibration."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from model_store.bundles.changes import open_writable, require_files
from model_store.bundles.directory import locate
from model_store.bundles.galleries import GalleryEntry
from model_store.bundles.manifest import ENCODER_FILE, Manifest, read_manifest
from model_store.bundles.retention import Hold
from model_store.bundles.signatures import require_signature
from model_store.decision import Calibration
from model_store.encoder.contract import Encoder, TextEncoder
from model_store.encoder.onnx import OnnxEncoder
from model_store.encoder.text import open_text_encoder
from model_store.errors import BundleMismatch, VouchError, WriteRefused
from model_store.gallery import (
    GallerySnapshot,
    LiveGallery,
    Writable,
)
from model_store.gallery.opening import NO_DATABASE, DatabaseAccess, open_gallery
from model_store.machine import ProviderChoice
from model_store.retriever import Retriever


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle.

    Attributes
    ----------
    root : directory of bundles whose `CURRENT` names this bundle; None if the bundle was opened by
        its own path.
    live : the gallery with its log of changes in ``root``; None if ``root`` is None.
    hold : lock that prevents other processes from removing the open bundle.
    entry : the gallery's entry in its `GalleryFolder`; None for a gallery built by the command
        line.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> bundle.manifest.id, bundle.retriever.gallery.n_items
    """

    directory: Path
    manifest: Manifest
    retriever: Retriever
    root: Path | None = None
    live: Writable | None = None
    hold: Hold | None = None
    entry: GalleryEntry | None = None

    @property
    def name(self) -> str:
        """Name of the gallery."""
        return self.built_as if self.entry is None else self.entry.name

    @property
    def built_as(self) -> str:
        """The name that the gallery had when it was built."""
        return str(self.manifest.gallery["name"])

    @property
    def key(self) -> str:
        """The key of the gallery in other data, for example in feedback; a rename keeps the key."""
        return self.built_as if self.entry is None else self.entry.id

    @property
    def description(self) -> str:
        """A description of the gallery, for a person to read."""
        if self.entry is not None:
            return self.entry.description
        return str(self.manifest.gallery["description"])

    @property
    def version(self) -> int:
        """The number of the gallery's last change; 0 if the gallery accepts no changes."""
        if self.live is None:
            return 0
        # Not `isinstance` with a protocol: each request reads the version a few times.
        version: int = getattr(self.retriever.gallery, "version", 0)
        return version

    @property
    def state(self) -> tuple[str, int, int]:
        """The bundle's id, the number of restores of its database, and `version`.

        Of two states of a bundle, the later state is greater.
        """
        return self.manifest.id, getattr(self.retriever.gallery, "n_restored", 0), self.version

    @property
    def n_pending(self) -> int:
        """Number of items added after the build; a search compares each of these items."""
        gallery = self.retriever.gallery
        return gallery.n_appended if isinstance(gallery, GallerySnapshot) else 0

    def require_live(self) -> Writable:
        """Return the gallery in a form that accepts changes.

        Raises
        ------
        WriteRefused : the bundle was opened by its own path, so it never changes.
        """
        if self.live is None:
            raise WriteRefused(
                f"The gallery {self.name!r} is served from one bundle, which never changes. To "
                "change the gallery, name the directory that holds its bundles."
            )
        return self.live

    def require_log(self) -> LiveGallery:
        """Return the gallery with its log of changes, for a compaction.

        Raises
        ------
        WriteRefused : the bundle accepts no changes, or its gallery is in a database.
        """
        return require_files(self.require_live(), self.name)

    def within(self, root: Path) -> Bundle:
        """Return the bundle with the log of changes in ``root``."""
        live = open_writable(root, self.directory, self.retriever.gallery)
        retriever = self.retriever.with_gallery(live.snapshot())
        return replace(self, retriever=retriever, root=root, live=live)

    def renewed(self) -> Bundle:
        """Return the bundle with the current snapshot of its gallery."""
        if self.live is None:
            return self
        snapshot = self.live.snapshot()
        if snapshot is self.retriever.gallery:
            return self
        return replace(self, retriever=self.retriever.with_gallery(snapshot))


_MALFORMED = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    *(FileNotFoundError, sqlite3.DatabaseError),
)
"""These errors mean that the content of a file is invalid, although the file's digest agrees with
the manifest."""

OpenEncoder = Callable[[Path, ProviderChoice, int], Encoder]
"""A function that takes a file, a provider and a number of threads, and opens an encoder; see
`OnnxEncoder`."""

OpenText = Callable[[Path, int], TextEncoder | None]
"""A function that opens a directory's text encoder; see `open_text_encoder`."""


def open_parts(
    directory: Path,
    provider: ProviderChoice = "auto",
    threads: int = 0,
    open_encoder: OpenEncoder = OnnxEncoder,
    access: DatabaseAccess = NO_DATABASE,
    open_text: OpenText = open_text_encoder,
) -> Retriever:
    """Open the encoders, gallery and calibrations of ``directory``.

    ``access`` is the access to the database, for a gallery in a database.
    """
    gallery, calibration = open_gallery(directory, access), Calibration.load(directory)
    text, of_texts = open_text(directory, threads), Calibration.load(directory, "text")
    encoder = open_encoder(directory / ENCODER_FILE, provider, threads)
    try:
        return Retriever(encoder, gallery, calibration, text, of_texts)
    except BundleMismatch:
        encoder.close()
        raise


def open_bundle(
    path: Path,
    provider: ProviderChoice = "auto",
    threads: int = 0,
    open_encoder: OpenEncoder = OnnxEncoder,
    access: DatabaseAccess = NO_DATABASE,
    trusted: Collection[str] = (),
    open_text: OpenText = open_text_encoder,
) -> Bundle:
    """Verify and open the bundle at ``path``, or the current bundle of a directory of bundles.

    Parameters
    ----------
    trusted : public keys. One of these keys must have signed the bundle. If there are no keys,
        unsigned bundles are accepted.

    Raises
    ------
    BundleError : the bundle is missing, changed or not trusted, or its files contradict each other.
    EncoderError : the encoder cannot run on this machine.
    GalleryUnavailable : the gallery is in a database, which does not answer.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = bundle.retriever.search(Path("photo.png").read_bytes(), limit=10)
    """
    directory = locate(path)
    hold = Hold(directory)
    manifest = read_manifest(directory)
    if trusted:
        require_signature(directory, manifest, trusted)
    try:
        retriever = open_parts(directory, provider, threads, open_encoder, access, open_text)
    except _MALFORMED as error:
        raise BundleMismatch(
            f"The bundle {directory.name} cannot be opened: one of its files has invalid content "
            f"({type(error).__name__}: {str(error)[:200]!r}). Build it again, or take it from a "
            "publisher whom you trust."
        ) from error
    if manifest.encoder["fingerprint"] != retriever.encoder.fingerprint:
        retriever.encoder.close()
        raise BundleMismatch(
            f"The manifest of {directory.name} names encoder "
            f"{str(manifest.encoder['fingerprint'])[:12]}, the file is "
            f"{retriever.encoder.fingerprint[:12]}. Build the bundle again."
        )
    bundle = Bundle(directory, manifest, retriever, hold=hold)
    if directory == path:
        return bundle
    try:
        return bundle.within(path)
    except VouchError:
        retriever.encoder.close()
        raise
