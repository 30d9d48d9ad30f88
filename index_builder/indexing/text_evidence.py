"""Calibrates the text queries of a bundle with captions.

A caption is a text query that describes an item or a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from index_builder.calibration import corrected_by_feedback
from index_builder.calibration.captions import Captions, calibrate_texts
from index_builder.configuration.build import CalibrationConfig, parse_promises
from index_builder.configuration.requirements import Check, accept_any
from index_builder.configuration.signing import signing_key
from index_builder.indexing.assemble import text_described
from index_builder.indexing.bundle_evidence import opened
from index_builder.indexing.own_queries import label_of_item
from index_builder.indexing.sources.manifest import Line, lines_of, text_of
from model_store.bundles.compaction import Compaction
from model_store.bundles.manifest import Manifest
from model_store.decision import outcome_of
from model_store.errors import DatasetError
from model_store.feedback import FeedbackLog
from model_store.gallery import Gallery
from model_store.retriever import Retriever
from model_store.text_queries import text_encoder


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
    ConfigError : an error bound is out of range.
    TextUnavailable : the gallery has no text encoder.
    DatasetError : the captions are invalid.
    CalibrationError : there are too few captions.
    WriteRefused : the bundle cannot be changed, or its gallery is in a database.
    """
    with opened(root) as bundle:
        retriever = bundle.retriever
        encoder, live = text_encoder(retriever), bundle.require_log()
        config = _config(retriever, promises)

        def calibrate(gallery: Gallery, staging: Path, manifest: Manifest) -> Manifest:
            known = read_captions(captions, gallery)
            fitted = calibrate_texts(encoder, gallery, known, config, seed)
            if feedback is not None:
                fitted = corrected_by_feedback(fitted, FeedbackLog(feedback))
            check(outcome_of(fitted))
            fitted.save(staging, "text")
            whole = Retriever(retriever.encoder, gallery, retriever.calibration, encoder, fitted)
            return replace(manifest, encoder={**manifest.encoder, **text_described(whole)})

        with Compaction(root, bundle.manifest, live, signing_key(), calibrate) as compaction:
            return compaction.publish()


def _config(retriever: Retriever, promises: Mapping[str, float]) -> CalibrationConfig:
    """Return all error bounds; a bound that is not in ``promises`` keeps its current value.

    The current values are the values in the calibration of texts. If texts are not calibrated, the
    values in the calibration of images are used. The expected share of queries without a match is
    the exception: it has a default.
    """
    before, of_images = retriever.for_kind("text").calibration, retriever.calibration
    fields = dict.fromkeys(CalibrationConfig.model_fields)
    if before is not None:
        known = {name: getattr(before, name) for name in fields}
    elif of_images is not None:
        known = {name: getattr(of_images, name) for name in fields if name != "expected_absent"}
    else:
        known = {}
    return parse_promises({**known, **promises})


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
