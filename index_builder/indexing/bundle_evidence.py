"""Calibrates, evaluates and compares bundles with the user's own queries: images or texts.

A caption is a text query that describes an item or a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from index_builder.calibration import MIN_QUERIES, corrected_by_feedback
from index_builder.calibration.calibrate import (
    N_DETECTOR_IMAGES,
    Captions,
    calibrate_gallery,
    calibrate_texts,
    calibrate_with_queries,
)
from index_builder.calibration.evaluate import evaluated
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import whole_groups
from index_builder.calibration.kept_queries import keep
from index_builder.calibration.retrieval import TruthRule, are_items, say_left_out
from index_builder.configuration.build import CalibrationConfig, parse_promises
from index_builder.configuration.environment import open_with_access, signing
from index_builder.datasets.splits import QuerySet
from index_builder.indexing.assemble import Check, accept_any, calibrated, text_described
from index_builder.progress import console
from index_builder.storage import Storage
from index_builder.vectors.encoder import PassedVectors, StoredEncoder, embed_all
from index_builder.vectors.images import VectorFile
from index_builder.vectors.table import VectorTable, holds_vectors, open_table
from model_store.bundles.compaction import Compaction
from model_store.bundles.kept_queries import BUILD_QUERIES_FILE, KEPT_QUERIES_FILE
from model_store.bundles.manifest import Manifest
from model_store.decision import outcome_of
from model_store.errors import CalibrationError, DatasetError, UsageError
from model_store.feedback import FeedbackLog, require_feedback_file
from model_store.gallery import Gallery
from model_store.images import ImageLimits
from model_store.machine import one_blas_thread
from model_store.queries import text_encoder
from model_store.retriever import Retriever

from .comparison import Side, compared
from .comparison import page as comparison_page
from .evaluation_page import page
from .own_queries import TEXTS, QueryReader, label_of_item
from .parents import NO_PARENTS, Parents
from .sources import VectorSource, open_source
from .sources.manifest import Line, lines_of, text_of

if TYPE_CHECKING:
    from index_builder.datasets import LabelledImages
    from model_store.bundles.bundle import Bundle
    from model_store.decision import Calibration
    from model_store.encoder.contract import Encoder

    from .sources import Source


_LIMITS = ImageLimits(max_bytes=2**30, max_pixels=ImageLimits().max_pixels)


@dataclass(frozen=True, slots=True)
class EvidenceSource:
    """The data for a calibration or evaluation: queries with their true matches.

    Attributes
    ----------
    queries : path or URL of the queries: images, or a table of vectors.
    items : manifest with one line per row of the vectors; None if the table has the fields.
    gallery : path or URL of the source that the gallery was indexed from; None if not given.
    gallery_items : manifest of ``gallery``, if ``gallery`` is a table of vectors.
    parents : parents of labels; by default, the parents in the current calibration.
    within : maximum distance in metres between a query and its matches; if None, the rule of the
        current calibration is kept.
    """

    queries: str
    items: Path | None = None
    gallery: str | None = None
    gallery_items: Path | None = None
    parents: Parents = NO_PARENTS
    within: float | None = None

    def rule(self, gallery: Gallery, before: Calibration | None) -> TruthRule:
        """Return the rule that defines true matches; a missing option is taken from ``before``.

        Raises
        ------
        UsageError : labels have no effect, because places define matches, but parents of labels are
            given.
        """
        within = self.within
        if within is None and before is not None:
            within = before.within
        if within is not None:
            if self.parents != NO_PARENTS:
                raise UsageError(
                    f"Matches are defined by place (within {within:g} metres), so labels and their "
                    "parents have no effect. Remove --parents and --levels."
                )
            return TruthRule(within=within)
        hierarchy = self.parents.of(gallery)
        if hierarchy is None and before is not None:
            hierarchy = before.hierarchy
        return TruthRule(hierarchy)


def calibrate_bundle(
    root: Path,
    evidence: EvidenceSource,
    promises: Mapping[str, float],
    seed: int = 0,
    check: Check = accept_any,
) -> Path:
    """Calibrate the current bundle of ``root`` with queries, and publish the new bundle.

    The new bundle includes all changes of the gallery, even changes made during the calibration.

    Parameters
    ----------
    promises : error bounds by their names in `CalibrationConfig`. A bound that is not given keeps
        its current value; in a bundle without calibration, the bound gets its default.
    check : see `Check`.

    Raises
    ------
    ConfigError : an error bound is out of range.
    CalibrationError : there are too few queries with a match, or too few without a match.
    DatasetError : the queries are invalid.
    WriteRefused : the bundle cannot be changed, or its gallery is in a database.
    """
    with opened(root) as bundle, reading(bundle.retriever.encoder, evidence) as room:
        live, before = bundle.require_log(), bundle.retriever.calibration
        config = parse_promises(promises, before)

        def calibrate(gallery: Gallery, staging: Path, manifest: Manifest) -> Manifest:
            fitted = _fitted(room, gallery, before, config, seed, staging)
            return calibrated(manifest, fitted, staging, check)

        with Compaction(root, bundle.manifest, live, signing(), calibrate) as compaction:
            return compaction.publish()


def evaluate_bundle(
    root: Path, evidence: EvidenceSource, seed: int = 0, *, with_page: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Evaluate the current bundle of ``root`` on queries that its calibration did not use.

    Returns
    -------
    The report of `evaluated`, and an HTML page of the report. If ``with_page`` is False, the page
    is None.

    Raises
    ------
    CalibrationError : the bundle is not calibrated, or no query has a match.
    DatasetError : the queries are invalid.
    """
    with _evaluated(root, evidence, seed) as side:
        text = page(side.evaluation, side.gallery, side.name) if with_page else None
        return side.evaluation.report, text


def compare_bundles(
    roots: tuple[Path, Path], evidence: EvidenceSource, seed: int = 0, *, with_page: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Evaluate the current bundles of two directories on the same queries.

    Returns
    -------
    The report of `compared`, and an HTML page of the report. If ``with_page`` is False, the page is
    None.

    Raises
    ------
    CalibrationError, DatasetError : see `evaluate_bundle`.
    """
    with _evaluated(roots[0], evidence, seed) as old, _evaluated(roots[1], evidence, seed) as new:
        report = compared(old, new)
        return report, comparison_page(old, new, report) if with_page else None


@contextmanager
def _evaluated(root: Path, evidence: EvidenceSource, seed: int) -> Iterator[Side]:
    """Evaluate the current bundle of ``root``; the bundle stays open in the context."""
    with opened(root) as bundle, reading(bundle.retriever.encoder, evidence) as room:
        gallery, calibration = bundle.retriever.gallery, bundle.retriever.calibration
        if calibration is None:
            raise CalibrationError(
                "The bundle is not calibrated, so it cannot be evaluated. Run "
                "`vouch-build calibrate BUNDLES --queries FILE` first."
            )
        rule = evidence.rule(gallery, calibration)
        queries = _queries(room, gallery, rule)
        if not len(queries.matched):
            advice = (
                "The column `item` has the id of the item that a query shows; the column `label` "
                "has its label."
                if rule.within is None
                else f"A match is within {rule.within:g} metres of the query; compare latitude and "
                "longitude of queries and items."
            )
            raise CalibrationError(
                "None of the queries matches an item of the gallery. An evaluation needs one or "
                f"more queries with a match, also for the false-match rate. {advice}"
            )
        retriever = Retriever(room.encoder, gallery, calibration)
        found = evaluated(retriever, queries, seed, rule.within)
        yield Side(root.name, found, calibration, gallery)


@dataclass(frozen=True, slots=True)
class OpenedEvidence:
    """The evidence, and the objects that read and embed it.

    Attributes
    ----------
    scratch : directory for temporary files.
    storage : reads remote files.
    tables : opened tables of vectors, by name; their rows need no embedding.
    """

    evidence: EvidenceSource
    encoder: StoredEncoder
    scratch: Path
    storage: Storage
    tables: dict[str, VectorTable] = field(default_factory=dict)

    def source(self, name: str, items: Path | None) -> Source:
        """Open a source of images or of vectors, depending on the encoder's input.

        Raises
        ------
        UsageError : images have a manifest of rows.
        """
        if self.encoder.metadata.takes_images:
            if items is not None:
                raise UsageError(
                    f"{items} cannot be used: --items and --gallery-items are for a table of "
                    f"vectors, but {name} is a source of images. Remove the option."
                )
            return open_source(name, storage=self.storage, texts=TEXTS)
        table = self.tables.get(name) or _table(name)
        table.require(self.encoder.metadata.input)
        return VectorSource(table, items, texts=TEXTS)

    def reader(self, gallery: Gallery) -> QueryReader:
        """Return the reader of queries of ``gallery``."""
        return QueryReader(self.encoder, gallery, self.scratch, _LIMITS, self.storage)


def _fitted(
    room: OpenedEvidence,
    gallery: Gallery,
    before: Calibration | None,
    config: CalibrationConfig,
    seed: int,
    staging: Path,
) -> Calibration:
    """Fit a calibration, and store its queries in ``staging``.

    Parameters
    ----------
    staging : directory of the new bundle.
    """
    rule = room.evidence.rule(gallery, before)
    queries, named = _queries(room, gallery, rule), room.evidence.gallery
    if rule.within is not None and len(queries.matched) < MIN_QUERIES:
        raise CalibrationError(
            f"Only {len(queries.matched)} queries are within {rule.within:g} metres of an item; at "
            f"least {MIN_QUERIES} are needed. Add queries from the places of the gallery. If there "
            "are such queries, compare their latitude and longitude with those of the items."
        )
    if rule.within is not None and len(queries.withheld) < MIN_QUERIES:
        raise CalibrationError(
            f"Only {len(queries.withheld)} queries are near no item; at least {MIN_QUERIES} are "
            "needed. Add queries from places where the gallery has no items."
        )
    if named is not None:
        if len(queries.withheld) < MIN_QUERIES:
            console.print(
                f"Fewer than {MIN_QUERIES} queries match nothing. Instead, the calibration hides "
                "the true matches of some queries."
            )
            queries = replace(queries, withheld=queries.withheld.at([]))
        source = room.source(named, room.evidence.gallery_items)
        images = room.reader(gallery).items(source)
        order = np.random.default_rng(seed).permutation(len(images))
        images = images.at(whole_groups(images.groups, order, N_DETECTOR_IMAGES))
        known = room.encoder, gallery, images, queries, seed
        inputs = GalleryQueries(*known, are_views=False, unseen=False, rule=rule)
        _keep(inputs, staging, before)
        return calibrate_gallery(inputs, config)
    if before is None:
        raise CalibrationError(
            "The bundle was never calibrated, so the outlier detector needs the gallery's images. "
            "Use --gallery to name the source of the gallery."
        )
    if len(queries.withheld) < MIN_QUERIES:
        raise CalibrationError(
            f"Only {len(queries.withheld)} queries match nothing; at least {MIN_QUERIES} are "
            "needed. Add realistic queries without a match (no item, no label). Or use --gallery "
            "to name the source of the gallery: the calibration then hides the true matches of "
            "some queries."
        )
    known = room.encoder, gallery, queries.matched.at([]), queries, seed
    _keep(GalleryQueries(*known, are_views=False, unseen=False), staging, before)
    calibration = calibrate_with_queries(
        room.encoder, gallery, before.detector, queries, config, seed, rule
    )
    return replace(calibration, picture=before.picture)


def _keep(inputs: GalleryQueries, staging: Path, before: Calibration | None) -> None:
    """Store the queries; move the queries of the build to `BUILD_QUERIES_FILE`.

    A bundle without calibration was built by `vouch-build index`, whose encoder must not be trained
    on the collection's images.
    """
    built, kept = staging / BUILD_QUERIES_FILE, staging / KEPT_QUERIES_FILE
    if before is None and not kept.exists():
        none = inputs.images.at([])
        nothing = QuerySet(none, none, None)
        keep(staging, replace(inputs, images=none, queries=nothing, unseen=True))
    if kept.exists() and not built.exists():
        kept.rename(built)
    keep(staging, inputs)


def _queries(room: OpenedEvidence, gallery: Gallery, rule: TruthRule) -> QuerySet:
    """Read the queries; print the number of queries, and the queries that are left out.

    Queries that are equal to an item of the gallery are left out, see `are_items`.

    Raises
    ------
    CalibrationError : all queries with a match are equal to an item.
    """
    read = queries_of(room, gallery, rule)
    matched, withheld = (
        _without_items(room, gallery, part) for part in (read.matched, read.withheld)
    )
    found = QuerySet(matched, withheld, None)
    say_left_out(len(read.matched) + len(read.withheld) - len(matched) - len(withheld))
    if len(read.matched) and not len(matched):
        raise CalibrationError(
            f"All {len(read.matched):,} queries with a match are equal to an item of the gallery, "
            "so they do not show how similar new photographs are. Use photographs that are not in "
            "the gallery."
        )
    console.print(f"{len(found.matched):,} queries with a match, {len(found.withheld):,} without")
    return found


def _without_items(
    room: OpenedEvidence, gallery: Gallery, queries: LabelledImages
) -> LabelledImages:
    found = embed_all(room.encoder, queries, "queries")
    return queries.at(~are_items(gallery, found.directions))


def queries_of(room: OpenedEvidence, gallery: Gallery, rule: TruthRule) -> QuerySet:
    """Read the queries; print the unreadable queries."""
    source = room.source(room.evidence.queries, room.evidence.items)
    return room.reader(gallery).queries(source, rule.within)


@contextmanager
def opened(root: Path) -> Iterator[Bundle]:
    """Open the current bundle, with one BLAS thread: sums are then the same on every machine."""
    bundle = open_with_access(root, "auto", 1)
    try:
        with one_blas_thread():
            yield bundle
    finally:
        bundle.retriever.encoder.close()


@contextmanager
def reading(encoder: Encoder, evidence: EvidenceSource) -> Iterator[OpenedEvidence]:
    """Prepare to read the evidence; embeddings are cached until the context ends."""
    taken: Encoder = encoder
    tables: dict[str, VectorTable] = {}
    if encoder.metadata.takes_images and holds_vectors(Path(evidence.queries)):
        table = tables[evidence.queries] = _table(evidence.queries)
        taken = PassedVectors(encoder, table)
    with (
        TemporaryDirectory(prefix="vouch-queries-") as name,
        closing(VectorFile(Path(name) / "vectors.sqlite")) as known,
        closing(Storage()) as storage,
    ):
        yield OpenedEvidence(evidence, StoredEncoder(taken, known), Path(name), storage, tables)


def _table(name: str) -> VectorTable:
    return open_table(Path(name).expanduser().absolute())


def calibrate_bundle_texts(
    root: Path,
    captions: Path,
    promises: Mapping[str, float],
    seed: int = 0,
    feedback: Path | None = None,
    check: Check = accept_any,
) -> Path:
    """Calibrate the text queries of ``root``'s current bundle, and publish the new bundle.

    The calibration of images does not change. The new bundle includes all changes of the gallery,
    even changes made during the calibration.

    Parameters
    ----------
    captions : see `read_captions`.
    promises : error bounds by their names in `CalibrationConfig`. A bound that is not given keeps
        its current value for texts. If texts are not calibrated, the current value for images is
        used.
    feedback : the service's feedback file, for a correction of match probabilities; None for no
        correction.
    check : see `Check`.

    Raises
    ------
    ConfigError : an error bound is out of range, or ``feedback`` is no feedback file.
    TextUnavailable : the gallery has no text encoder.
    DatasetError : the captions are invalid.
    CalibrationError : there are too few captions.
    WriteRefused : the bundle cannot be changed, or its gallery is in a database.
    """
    if feedback is not None:
        require_feedback_file(feedback)
    with opened(root) as bundle:
        retriever = bundle.retriever
        encoder, live = text_encoder(retriever), bundle.require_log()
        config = _text_config(retriever, promises)

        def calibrate(gallery: Gallery, staging: Path, manifest: Manifest) -> Manifest:
            known = read_captions(captions, gallery)
            fitted = calibrate_texts(encoder, gallery, known, config, seed)
            if feedback is not None:
                fitted = corrected_by_feedback(fitted, FeedbackLog(feedback))
            check(outcome_of(fitted))
            fitted.save(staging, "text")
            whole = Retriever(retriever.encoder, gallery, retriever.calibration, encoder, fitted)
            return replace(manifest, encoder={**manifest.encoder, **text_described(whole)})

        with Compaction(root, bundle.manifest, live, signing(), calibrate) as compaction:
            return compaction.publish()


def _text_config(retriever: Retriever, promises: Mapping[str, float | None]) -> CalibrationConfig:
    """Return all error bounds; a bound that is not in ``promises`` keeps its current value.

    The current values are the values in the calibration of texts. If texts are not calibrated, the
    values in the calibration of images are used. The expected share of queries without a match is
    the exception: it has a default.
    """
    before = retriever.for_kind("text").calibration
    if before is None:
        promises = {"expected_absent": None, **promises}
    return parse_promises(promises, before or retriever.calibration)


COLUMNS = frozenset({"text", "id", "label", "group", "source"})


def read_captions(path: Path, gallery: Gallery) -> Captions:
    """Read a table of captions: CSV, JSONL or Parquet.

    Each line has a ``text``, and the ``id`` of the item or the ``label`` that the text describes.
    If both fields are empty, the text describes nothing in the gallery. Texts with the same
    ``group`` are not independent. By default, texts with the same ``id`` form a group; equal texts
    without ``id`` form a group too. ``source`` is the origin of the text.

    Raises
    ------
    DatasetError : a line is invalid, or names an item or label that the gallery does not have.
    """
    labels = frozenset(gallery.labels)
    texts, about, clusters, sources = [], [], [], []
    for line in lines_of(path, COLUMNS):
        origin, fields = line
        text = text_of(fields, "text", origin)
        if text is None or not text.strip():
            raise DatasetError(
                f"{origin}: there is no text. Put the query into a column named text; "
                f"the columns here are {', '.join(map(repr, fields))}."
            )
        item = text_of(fields, "id", origin)
        texts.append(text)
        about.append(_label(line, gallery, labels))
        own = f"text {text.casefold()}" if item is None else f"item {item}"
        group = text_of(fields, "group", origin)
        clusters.append(own if group is None else f"group {group}")
        sources.append(text_of(fields, "source", origin) or "")
    known = tuple(sources) if any(sources) else None
    return Captions(tuple(texts), tuple(about), tuple(clusters), known)


def _label(line: Line, gallery: Gallery, labels: frozenset[str]) -> str | None:
    """Return the label that a line describes; the item's id if the gallery has no labels."""
    origin, fields = line
    item, label = text_of(fields, "id", origin), text_of(fields, "label", origin)
    if item is not None:
        found = label_of_item(gallery, item, origin, "id")
        if labels and label not in {None, found}:
            raise DatasetError(
                f"{origin}: the item {item!r} has the label {found!r}, not {label!r}."
            )
        return found
    if label is not None and label not in labels:
        known = f"no label {label!r}" if labels else "no labels: name items by their id"
        raise DatasetError(
            f"{origin}: the gallery has {known}. Leave label empty if the text describes no item."
        )
    return label
