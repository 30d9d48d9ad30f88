"""Calibration and evaluation of any bundle with the user's own queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from index_builder.calibration import MIN_QUERIES
from index_builder.calibration.calibrate import (
    N_DETECTOR_IMAGES,
    calibrate_gallery,
    calibrate_with_queries,
)
from index_builder.calibration.evaluate import evaluated
from index_builder.calibration.kept_queries import keep
from index_builder.calibration.leave_one_out import whole_groups
from index_builder.calibration.queries import TruthRule
from index_builder.configuration.build import CalibrationConfig, parse_promises
from index_builder.configuration.milvus import milvus_access
from index_builder.configuration.requirements import Check, accept_any
from index_builder.configuration.signing import signing_key
from index_builder.indexing.bundle_manifest import summarise
from index_builder.indexing.comparison import Side, compared
from index_builder.indexing.comparison import page as comparison_page
from index_builder.indexing.evaluation_page import page
from index_builder.indexing.own_queries import TEXTS, read_gallery, read_queries
from index_builder.indexing.parents import NO_PARENTS, Parents
from index_builder.indexing.sources import VectorSource, open_source
from index_builder.progress import console
from index_builder.storage import Storage
from index_builder.vectors.encoder import StoredEncoder
from index_builder.vectors.passed import PassedVectors
from index_builder.vectors.store import VectorFile
from index_builder.vectors.table import VectorTable, holds_vectors, open_table
from model_store.bundles.bundle import open_bundle
from model_store.bundles.compaction import Compaction
from model_store.bundles.manifest import EVALUATION_FILE, Manifest
from model_store.decision import outcome_of
from model_store.errors import CalibrationError
from model_store.images import ImageLimits
from model_store.retriever import Retriever
from model_store.threads import one_blas_thread

if TYPE_CHECKING:
    from index_builder.datasets import LabelledImages
    from index_builder.datasets.splits import QuerySet
    from index_builder.indexing.sources import Source
    from model_store.bundles.bundle import Bundle
    from model_store.decision import Calibration
    from model_store.encoder.contract import Encoder
    from model_store.gallery import Gallery

_LIMITS = ImageLimits(max_bytes=2**30, max_pixels=ImageLimits().max_pixels)
_N_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Evidence:
    """Queries with their truth, and maybe what the gallery was made of.

    Attributes
    ----------
    queries : a source of images, by path or URL, or a table of vectors.
    items : what is known of each row of a table of vectors; None where the table says it.
    gallery : what the gallery was made of, as ``index`` took it.
    gallery_items : of that, where it is a table of vectors.
    parents : of labels; where none are named those that were known stay.
    within : metres from a query to a match; None for what is known already, or the same label.
    """

    queries: str
    items: Path | None = None
    gallery: str | None = None
    gallery_items: Path | None = None
    parents: Parents = NO_PARENTS
    within: float | None = None

    def rule(self, gallery: Gallery, before: Calibration | None) -> TruthRule:
        """Return what counts as a match; options that are not given keep their value ``before``."""
        hierarchy, within = self.parents.of(gallery), self.within
        if before is not None:
            hierarchy = before.hierarchy if hierarchy is None else hierarchy
            within = before.within if within is None else within
        return TruthRule(hierarchy, within)


def calibrate_bundle(
    root: Path,
    evidence: Evidence,
    promises: Mapping[str, float],
    seed: int = 0,
    check: Check = accept_any,
) -> Path:
    """Fit the calibration of the current bundle of ``root`` to queries, and publish it.

    Changes of the gallery since are taken in, and changes made during the calibration are carried
    over.

    Parameters
    ----------
    promises : what answers shall promise, by the names of `CalibrationConfig`; the rest keeps its
        value, or the default of a bundle without calibration.
    check : see `Check`.

    Raises
    ------
    ConfigError : a promise is out of range.
    CalibrationError : too few queries of a kind.
    DatasetError : the queries are not what they should be.
    WriteRefused : the bundle takes no changes, or its gallery lies in Milvus.
    """
    with opened(root) as bundle, reading(bundle.retriever.encoder, evidence) as room:
        live, before = bundle.require_log(), bundle.retriever.calibration
        config = _config(before, promises)

        def calibrate(gallery: Gallery, staging: Path, manifest: Manifest) -> Manifest:
            fitted = _fitted(room, gallery, before, config, seed, staging)
            check(outcome_of(fitted))
            fitted.save(staging)
            (staging / EVALUATION_FILE).unlink(missing_ok=True)  # of the earlier promises
            return replace(manifest, calibration=summarise(fitted), metrics=None)

        with Compaction(root, bundle.manifest, live, signing_key(), calibrate) as compaction:
            prepared = compaction.prepare()
            compaction.switch()
    return prepared


def evaluate_bundle(
    root: Path, evidence: Evidence, seed: int = 0, *, with_page: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Measure the current bundle of ``root`` on queries that it has not been calibrated with.

    Returns
    -------
    The report of `evaluated`, and a page of it if that is wanted.

    Raises
    ------
    CalibrationError : the bundle is not calibrated, or no query has a match.
    DatasetError : the queries are not what they should be.
    """
    with _evaluated(root, evidence, seed) as side:
        text = page(side.evaluation, side.gallery, side.name) if with_page else None
        return side.evaluation.report, text


def compare_bundles(
    roots: tuple[Path, Path], evidence: Evidence, seed: int = 0, *, with_page: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Measure two current bundles, such as of two encoders, on the same queries.

    Returns
    -------
    See `compared`; and a page of it if that is wanted.

    Raises
    ------
    CalibrationError, DatasetError : as in `evaluate_bundle`.
    """
    with _evaluated(roots[0], evidence, seed) as old, _evaluated(roots[1], evidence, seed) as new:
        report = compared(old, new)
        return report, comparison_page(old, new, report) if with_page else None


@contextmanager
def _evaluated(root: Path, evidence: Evidence, seed: int) -> Iterator[Side]:
    """Measure the current bundle of ``root``, and keep it open for its pictures."""
    with opened(root) as bundle, reading(bundle.retriever.encoder, evidence) as room:
        gallery, calibration = bundle.retriever.gallery, bundle.retriever.calibration
        if calibration is None:
            raise CalibrationError(
                "The bundle is not calibrated: there is nothing to hold its answers to. Give it "
                "`vouch-build calibrate BUNDLES --queries FILE` first."
            )
        rule = evidence.rule(gallery, calibration)
        queries = _queries(room, gallery, rule)
        if not len(queries.matched):
            raise CalibrationError(
                "None of the queries matches an item of the gallery. Name the item that a query "
                "shows in a column `item`, or its label."
            )
        judged = replace(calibration, within=rule.within)
        found = evaluated(Retriever(room.encoder, gallery, judged), queries, seed)
        yield Side(root.name, found, calibration, gallery)


@dataclass(frozen=True, slots=True)
class Room:
    """The evidence, and the encoder that embeds it or passes its vectors on.

    Attributes
    ----------
    scratch : a directory to work in.
    storage : reads what does not lie on this machine.
    tables : of vectors, by name: each is opened once.
    """

    evidence: Evidence
    encoder: StoredEncoder
    scratch: Path
    storage: Storage
    tables: dict[str, VectorTable] = field(default_factory=dict)

    def source(self, name: str, items: Path | None) -> Source:
        """Open a source of what the encoder takes."""
        if self.encoder.metadata.takes_images:
            return open_source(name, storage=self.storage, texts=TEXTS)
        table = self.tables.get(name) or _table(name)
        table.require(self.encoder.metadata.input)
        return VectorSource(table, items, texts=TEXTS)


def _fitted(
    room: Room,
    gallery: Gallery,
    before: Calibration | None,
    config: CalibrationConfig,
    seed: int,
    staging: Path,
) -> Calibration:
    """Fit a calibration, from the gallery's own images where they are named, and keep its queries.

    Parameters
    ----------
    staging : the directory of the bundle to be.
    """
    rule = room.evidence.rule(gallery, before)
    queries, named = _queries(room, gallery, rule), room.evidence.gallery
    if rule.within is not None and len(queries.withheld) < MIN_QUERIES:
        raise CalibrationError(
            f"Of the queries {len(queries.withheld)} are near no item; at least {MIN_QUERIES} are "
            "needed. Add queries from where the gallery has none: places cannot be hidden."
        )
    if named is not None:
        if len(queries.withheld) < MIN_QUERIES:
            console.print(
                f"Fewer than {MIN_QUERIES} queries match nothing: in their place, matches are "
                "hidden from their own queries."
            )
            queries = replace(queries, withheld=queries.withheld.subset([]))
        source = room.source(named, room.evidence.gallery_items)
        images = read_gallery(source, room.encoder, gallery, room.scratch, _LIMITS, room.storage)
        order = np.random.default_rng(seed).permutation(len(images))
        images = images.subset(whole_groups(images.groups, order, N_DETECTOR_IMAGES))
        _keep(room, images, queries, gallery, staging, seed)
        return calibrate_gallery(
            room.encoder,
            gallery,
            images,
            queries,
            config,
            seed,
            are_views=False,
            unseen=False,
            rule=rule,
        )
    if before is None:
        raise CalibrationError(
            "The bundle was never calibrated, so that nothing is known of what its encoder makes "
            "of ordinary images. Name what the gallery was made of: --gallery."
        )
    if len(queries.withheld) < MIN_QUERIES:
        raise CalibrationError(
            f"Of the queries {len(queries.withheld)} match nothing; at least {MIN_QUERIES} are "
            "needed. Add queries that match nothing in the gallery (no item, no label), as will "
            "come; or name what the gallery was made of (--gallery), so that matches can be hidden "
            "from their own queries."
        )
    _keep(room, queries.matched.subset([]), queries, gallery, staging, seed)
    calibration = calibrate_with_queries(
        room.encoder, gallery, before.detector, queries, config, seed, rule
    )
    return replace(calibration, picture=before.picture)


def _keep(
    room: Room,
    images: LabelledImages,
    queries: QuerySet,
    gallery: Gallery,
    staging: Path,
    seed: int,
) -> None:
    keep(
        staging,
        room.encoder,
        images,
        queries,
        gallery,
        seed,
        are_views=False,
        unseen=False,
    )


def _config(before: Calibration | None, promises: Mapping[str, float]) -> CalibrationConfig:
    """Return what is promised: what is named, and else what was promised before."""
    fields: dict[str, Any] = {}
    if before is not None:
        fields = {name: getattr(before, name) for name in CalibrationConfig.model_fields}
    return parse_promises({**fields, **promises})


def _queries(room: Room, gallery: Gallery, rule: TruthRule) -> QuerySet:
    """Read the queries, and say how many there are and which are left out."""
    found = queries_of(room, gallery, rule)
    console.print(f"{len(found.matched):,} queries with a match, {len(found.withheld):,} without")
    return found


def queries_of(room: Room, gallery: Gallery, rule: TruthRule) -> QuerySet:
    """Read the queries, and say which are left out."""
    source = room.source(room.evidence.queries, room.evidence.items)
    own = read_queries(
        source, room.encoder, gallery, room.scratch, _LIMITS, room.storage, rule.within
    )
    for name, failure in list(own.failures.items())[:_N_SHOWN]:
        console.print(f"left out: {name}: {failure.reason}", markup=False, soft_wrap=True)
    if len(own.failures) > _N_SHOWN:
        console.print(f"left out: {len(own.failures) - _N_SHOWN:,} more")
    return own.queries


@contextmanager
def opened(root: Path) -> Iterator[Bundle]:
    """Open the current bundle; sums of one thread are the same on every machine."""
    bundle = open_bundle(root, "auto", 1, milvus=milvus_access())
    try:
        with one_blas_thread():
            yield bundle
    finally:
        bundle.retriever.encoder.close()


@contextmanager
def reading(encoder: Encoder, evidence: Evidence) -> Iterator[Room]:
    """Prepare to read the evidence; an encoder remembers what it has embedded of it."""
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
        yield Room(evidence, StoredEncoder(taken, known), Path(name), storage, tables)


def _table(name: str) -> VectorTable:
    return open_table(Path(name).expanduser().absolute())
