"""Indexes a collection of images with an existing encoder, and publishes the bundle."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from index_builder.configuration.build import CalibrationConfig
from index_builder.configuration.environment import database_access, signing
from index_builder.datasets.image_files import (
    N_SHOWN,
    LeftOut,
    Reason,
    label_messages,
    nested_labels_message,
)
from index_builder.indexing.assemble import Check, accept_any, assemble, describe, duplicates
from index_builder.indexing.catalogue import Catalogue
from index_builder.output import read_from, write_table, writing
from index_builder.progress import warn
from index_builder.storage import Storage
from index_builder.vectors.encoder import StoredEncoder
from index_builder.vectors.encoder_file import text_files
from index_builder.vectors.images import VectorFile
from index_builder.vectors.table import VECTOR_SUFFIXES
from model_store.bundles.bundle import open_parts
from model_store.bundles.manifest import ENCODER_FILE
from model_store.bundles.publish import publish
from model_store.decision import Calibration, outcome_of
from model_store.encoder.contract import Encoder, VectorInput
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import ConfigError, DatasetError, SourceUnavailable, TooManyBadImages
from model_store.files import json_text, replacing
from model_store.gallery import IndexSettings, open_gallery
from model_store.gallery.filters.grammar import named_fields
from model_store.gallery.index.plan import DEFAULT_SETTINGS, plan_index
from model_store.gallery.opening import engine_at, index_description
from model_store.images import ImageLimits
from model_store.machine import ProviderChoice

from .blocks import BLOCK, BLOCK_OF_VECTORS, Failure, Tolerance
from .calibrate import calibrate_collection, plan_of
from .engines import Engine, Progress, embed_catalogue, local_engine, open_encoder
from .fetching import Fetching, reader
from .parents import NO_PARENTS, Parents, read_parents
from .sources import Source, VectorSource
from .workdir import Work, occupied


def write_quarantine(
    work: Work, failures: Mapping[str, Failure], left_out: LeftOut | None = None
) -> None:
    """Write a line for each image that is not in the gallery, in the order of the source.

    Parameters
    ----------
    left_out : files of the source that were left out; the report lists them last.
    """
    wanted = "SELECT position, origin FROM entries WHERE id = ?"
    with closing(sqlite3.connect(work.catalogue)) as connection:
        found = sorted(
            (*connection.execute(wanted, (name,)).fetchone(), name, why)
            for name, why in failures.items()
        )
    _write_lines(
        work.quarantine,
        [
            {"id": name, "source": origin, "error": why.error, "reason": why.reason}
            for _, origin, name, why in found
        ]
        + [
            {"id": one.name, "source": one.name, "error": one.reason, "reason": one.sentence}
            for one in (left_out.files if left_out is not None else ())
        ],
    )


def write_losses(work: Work, losses: Mapping[str, Sequence[str]]) -> None:
    """Write a line for each image that lost data in decoding, in the order of ids."""
    _write_lines(work.losses, ({"id": name, "losses": losses[name]} for name in sorted(losses)))


def counted(losses: Mapping[str, Sequence[str]]) -> str:
    """Describe as text how many images have losses, and the three most frequent losses."""
    counts = Counter(sentence for said in losses.values() for sentence in said)
    shown = [f"{n:,} × {sentence.rstrip('.')}" for sentence, n in counts.most_common(3)]
    return f"{len(losses):,}" + (f": {'; '.join(shown)}" if shown else "")


def write_duplicates(work: Work) -> int:
    """Write a line for each group of items with equal content; return the number of copies."""
    n_copies = 0

    def lines() -> Iterable[Mapping[str, Any]]:
        nonlocal n_copies
        for content, ids in duplicates(work.catalogue):
            n_copies += len(ids) - 1
            yield {"sha256": content, "ids": ids}

    _write_lines(work.duplicates, lines())
    return n_copies


def write_summary(work: Work, summary: Mapping[str, Any]) -> None:
    """Write the input and the state of the run, atomically."""
    with replacing(work.summary) as partial:
        partial.write_text(json_text(summary), encoding="utf-8")


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


EngineChoice = Literal["local", "ray"]

_NO_SUCH_FIELD = "No image has the metadata of --filter-field {names}. Check the spelling."

DEFAULT_PROMISES = CalibrationConfig()
DEFAULT_LIMITS = ImageLimits()


@dataclass(frozen=True, slots=True)
class Indexing:
    """A collection to index, with all options.

    Attributes
    ----------
    source : the collection.
    encoder : the encoder's file.
    name, description : name and description of the gallery.
    directory : the run directory, see `Work`.
    bundles : directory of bundles in which the new bundle is published.
    tolerance : maximum number or share of unreadable images.
    resume : whether to reuse the embeddings of an earlier run.
    n_workers : number of decoders, and number of batches that are encoded in parallel.
    engine : the engine that decodes and encodes.
    provider : the execution provider of the encoder.
    index : settings of the search index.
    database_uri : address of the database that stores the gallery; None for files.
    calibrate : whether to calibrate, so that answers have probabilities; see
        `calibrate_collection`.
    promises : the error bounds of the answers.
    limits : maximum size of an image.
    storage : reads remote images.
    parents : parents of labels, for answers with a parent instead of a label.
    """

    source: Source
    encoder: Path
    name: str
    description: str
    directory: Path
    bundles: Path
    tolerance: Tolerance
    resume: bool
    n_workers: int
    engine: EngineChoice = "local"
    provider: ProviderChoice = "auto"
    index: IndexSettings = DEFAULT_SETTINGS
    database_uri: str | None = None
    calibrate: bool = False
    promises: CalibrationConfig = DEFAULT_PROMISES
    limits: ImageLimits = DEFAULT_LIMITS
    storage: Storage = field(default_factory=Storage)
    parents: Parents = NO_PARENTS

    def opened(self) -> OnnxEncoder:
        """Open the encoder.

        Raises
        ------
        DatasetError : the encoder takes vectors but the source has images, or the reverse.
        """
        encoder = open_encoder(self.encoder, self.provider)
        taken = encoder.metadata.input
        if isinstance(self.source, VectorSource):
            self.source.table.require(taken)
        elif isinstance(taken, VectorInput):
            raise DatasetError(
                f"The encoder takes vectors of {taken.made_by!r}, and the source holds images. "
                f"Embed the images with that model, and name the table of vectors "
                f"({', '.join(VECTOR_SUFFIXES)})."
            )
        return encoder

    def catalogued(self, path: Path, scratch: Path, left_out: LeftOut) -> Catalogue:
        """Read the source into a catalogue.

        Parameters
        ----------
        path : the catalogue's file.
        scratch : a directory for unpacked files.
        left_out : collects the names of files that are left out.

        Raises
        ------
        DatasetError : the source is invalid or has no usable image.
        """
        block = BLOCK_OF_VECTORS if isinstance(self.source, VectorSource) else BLOCK
        entries = read_from(self.source.entries(scratch, left_out), scratch)
        catalogue = Catalogue(path, entries, block)
        if catalogue.contents.n_images == 0:
            catalogue.close()
            nothing = "There are no images in the source. Name another, or add images."
            raise DatasetError(f"{nothing} {left_out.sentence}".strip())
        labels = set(catalogue.labels())
        nested = nested_labels_message(labels, catalogue.labelled())
        for message in filter(None, [*label_messages(labels), nested]):
            warn(message)
        named = named_fields(self.index.filter_fields) or ()
        paths = {field.name: field.path for field in named if field.path}
        missing = [name for name, path in paths.items() if not catalogue.has_metadata(path)]
        if missing:
            warn(_NO_SUCH_FIELD.format(names=", ".join(missing)))
        return catalogue

    def require_named(self, catalogue: Catalogue, left_out: LeftOut) -> None:
        """Raise an error if more file names are invalid than the tolerance allows.

        Raises
        ------
        TooManyBadImages
        """
        n_bad = len(left_out.of(Reason.bad_name))
        n_images = catalogue.contents.n_images + n_bad
        if not self.tolerance.allows(n_bad, n_images):
            names = ", ".join(repr(one.name) for one in left_out.of(Reason.bad_name)[:N_SHOWN])
            raise TooManyBadImages(
                f"The names of {n_bad:,} of {n_images:,} images are not UTF-8, so they cannot be "
                f"ids; at most {self.tolerance} may fail: {names}{', …' * (n_bad > N_SHOWN)}. "
                "Rename them, or raise --max-bad."
            )

    def require_feasible(self, catalogue: Catalogue, dim: int) -> None:
        """Check options before the long embedding, and print the calibration plan.

        Parameters
        ----------
        dim : D, the dimension of an embedding.

        Raises
        ------
        ConfigError : the index exceeds its memory budget, or the engine or the previews do not
            support the source.
        CalibrationError : the collection has too few images or labels for a calibration.
        DatasetError : the table of parents is invalid.
        """
        if self.engine == "ray" and isinstance(self.source, VectorSource):
            raise ConfigError(
                "--engine ray takes images, and the source holds vectors. Leave --engine out."
            )
        of_vectors = isinstance(self.source, VectorSource)
        engine = None if self.database_uri is None else engine_at(self.database_uri)
        if self.index.preview_side is not None:
            if of_vectors:
                raise ConfigError("--previews needs images, not vectors. Leave --previews out.")
            if engine is not None and not engine.has_previews:
                raise ConfigError(f"{engine.name} stores no previews. Leave --previews out.")
        if self.database_uri is None:
            plan_index(catalogue.contents.n_images, dim, self.index)
        if self.parents.table is not None:
            read_parents(self.parents.table)
        if self.calibrate:
            plan_of(catalogue, self.promises, of_images=not of_vectors).show()


@dataclass(frozen=True, slots=True)
class IndexingResult:
    """The result of indexing a collection.

    Attributes
    ----------
    bundle : the published bundle.
    n_items : number of items in the gallery.
    n_kept : number of images that an earlier run embedded.
    n_quarantined : number of unreadable images.
    n_copies : number of items that are exact copies of other items.
    left_out : files of the source that were left out.
    calibration : the fitted calibration; None if `Indexing.calibrate` is False.
    losses : warnings by id, for images that lost data in decoding.
    failures : errors by id, for unreadable images.
    """

    bundle: Path
    n_items: int
    n_kept: int
    n_quarantined: int
    n_copies: int
    left_out: LeftOut
    calibration: Calibration | None = None
    losses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)

    def rows(self, directory: Path) -> list[tuple[str, str]]:
        """Return the rows of a summary table; ``directory`` holds the reports."""
        work = Work(directory)
        quarantined = f"{self.n_quarantined:,}"
        errors = Counter(failure.error for failure in self.failures.values())
        why = f" ({', '.join(f'{n:,} {error}' for error, n in errors.most_common())})" * bool(
            errors
        )
        copies = f"{self.n_copies:,}"
        return [
            ("items", f"{self.n_items:,}"),
            ("embedded by an earlier run", f"{self.n_kept:,}"),
            ("unreadable", f"{quarantined}{why}: {work.quarantine}" if self.n_quarantined else "0"),
            *self.left_out.rows(work.quarantine),
            (
                "changed when decoded",
                f"{counted(self.losses)}; see {work.losses}" if self.losses else "0",
            ),
            ("copies of others", f"{copies}: {work.duplicates}" if self.n_copies else "0"),
        ]


def index_collection(indexing: Indexing, check: Check = accept_any) -> IndexingResult:
    """Embed a collection, and publish the result as the current bundle.

    After an interruption, the same call resumes the run and gives the same bundle.

    Parameters
    ----------
    check : see `Check`.

    Raises
    ------
    DatasetError : the source is invalid.
    TooManyBadImages : too many images are unreadable. The quarantine report lists these images.
    SourceUnavailable : the images cannot be reached.
    OutputError : a disk is full, or a directory is read-only.
    WriteRefused : the bundle needs a signature, and there is no key.
    SigningKeyError : the key file is missing or invalid.
    RunInUse : another process uses the run directory.
    ConfigError, CalibrationError : see `Indexing.require_feasible`.
    BundleMismatch : the text encoder in the encoder's folder belongs to a different image encoder.
    """
    _require_writable(indexing.bundles)
    signing().key_for(indexing.bundles)  # fails before the embedding
    with occupied(indexing.directory) as work, closing(indexing.storage):
        opened = indexing.opened()
        text_files(indexing.encoder, opened.fingerprint)  # fail before the embedding
        with writing(f"the run directory {work.directory}"):
            work.begin(resume=indexing.resume)
            work.quarantine.unlink(missing_ok=True)
            left_out = LeftOut()
            catalogue = indexing.catalogued(work.catalogue, work.source, left_out)
            write_quarantine(work, {}, left_out)
        indexing.require_named(catalogue, left_out)
        indexing.require_feasible(catalogue, opened.dim)
        encoder = StoredEncoder(opened, VectorFile(work.vectors) if indexing.calibrate else None)
        summary = _summary(indexing, catalogue)
        progress = Progress(catalogue.contents.n_images)
        started, computed = time.perf_counter(), _cpu_seconds()
        try:
            with writing(f"the run directory {work.directory}"):
                write_summary(work, {**summary, "state": "embedding"})
            _embed(indexing, encoder, work, catalogue, progress)
        except (TooManyBadImages, SourceUnavailable):
            write_quarantine(work, progress.failures, left_out)
            raise
        seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - computed
        with writing(f"the bundle of {indexing.name}", progress.sentence):
            outcome = _published(indexing, work, catalogue, encoder, progress, left_out, check)
            end = {
                "state": "published",
                "bundle": str(outcome.bundle),
                "n_items": outcome.n_items,
                "n_quarantined": outcome.n_quarantined,
                "n_copies": outcome.n_copies,
                "n_of_other_formats": len(left_out.of(Reason.other_format)),
                "n_left_out": {one: len(left_out.of(one)) for one in Reason if left_out.of(one)},
                "n_losses": len(outcome.losses),
                "seconds_embedding": seconds,
                "cpu_seconds_embedding": cpu_seconds,
            }
            write_summary(work, {**summary, **end})
        catalogue.close()
        encoder.close()
        work.clear()
    return outcome


def _embed(
    indexing: Indexing,
    encoder: StoredEncoder,
    work: Work,
    catalogue: Catalogue,
    progress: Progress,
) -> None:
    with closing(_engine(indexing, encoder, work)) as engine:
        embed_catalogue(
            catalogue,
            work.store,
            encoder,
            engine,
            indexing.tolerance,
            progress,
            indexing.index.preview_side,
        )


def _engine(indexing: Indexing, encoder: StoredEncoder, work: Work) -> Engine:
    if indexing.engine == "ray":
        from index_builder.indexing.ray_engine import RayEngine  # noqa: PLC0415 - an extra

        return RayEngine(
            indexing.encoder,
            indexing.provider,
            indexing.n_workers,
            indexing.limits,
            indexing.storage,
            indexing.index.preview_side,
        )
    fetching = Fetching(indexing.storage, work.fetched, indexing.limits)
    return local_engine(
        encoder, indexing.n_workers, indexing.limits, fetching, indexing.index.preview_side
    )


def _published(
    indexing: Indexing,
    work: Work,
    catalogue: Catalogue,
    encoder: Encoder,
    progress: Progress,
    left_out: LeftOut,
    check: Check,
) -> IndexingResult:
    write_quarantine(work, progress.failures, left_out)
    write_losses(work, progress.losses)
    n_items = assemble(
        work,
        catalogue.n_blocks,
        encoder.dim,
        encoder.fingerprint,
        indexing.index,
        indexing.database_uri,
        grouped=indexing.calibrate,
        owner=f"{indexing.name} in {indexing.bundles.resolve()}",
    )
    n_copies = write_duplicates(work)
    calibration, access = None, database_access(indexing.database_uri)
    if indexing.calibrate:
        labelled = catalogue.contents.n_labels > 0
        gallery, seed = open_gallery(work.bundle, access), indexing.index.seed
        calibration = calibrate_collection(
            work,
            encoder,
            gallery,
            indexing.promises,
            seed,
            labelled=labelled,
            read=reader(indexing.storage, indexing.limits),
            hierarchy=indexing.parents.of(gallery),
        )
        calibration.save(work.bundle)
        title = f"Calibration of {indexing.name}"
        write_table(work.calibration_table, title, calibration.report)
    check(outcome_of(calibration))
    shutil.copyfile(indexing.encoder, work.bundle / ENCODER_FILE)
    for path in text_files(indexing.encoder, encoder.fingerprint):
        shutil.copyfile(path, work.bundle / path.name)
    retriever = open_parts(work.bundle, "cpu", access=access)
    index = index_description(work.bundle)
    manifest = describe(retriever, index, indexing.name, indexing.description)
    bundle = publish(work.bundle, manifest, indexing.bundles, keep=False, signing=signing())
    n_bad = len(progress.failures)
    return IndexingResult(
        bundle,
        n_items,
        progress.n_kept,
        n_bad,
        n_copies,
        left_out,
        calibration,
        progress.losses,
        progress.failures,
    )


def _cpu_seconds() -> float:
    """Return the CPU seconds used by this process and by its ended child processes."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _summary(indexing: Indexing, catalogue: Catalogue) -> dict[str, Any]:
    return {
        "name": indexing.name,
        "encoder": str(indexing.encoder),
        "bundles": str(indexing.bundles),
        "n_images": catalogue.contents.n_images,
        "n_blocks": catalogue.n_blocks,
    }


def _require_writable(bundles: Path) -> None:
    """Check that the directory is writable, before hours of work."""
    with writing(f"into the directory of bundles {bundles}"):
        bundles.mkdir(parents=True, exist_ok=True)
        probe = bundles / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another run may check at the same time
