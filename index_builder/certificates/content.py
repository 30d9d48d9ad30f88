"""The statements of a certificate on a bundle, computed from the bundle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.certificates.population import population
from index_builder.certificates.promised import not_promised, outlier_flag, promises
from index_builder.certificates.since import Observed, since
from index_builder.metrics import auroc, calibration_error, reliability
from model_store.bundles.directory import locate
from model_store.bundles.manifest import EVALUATION_FILE, Manifest, read_manifest
from model_store.decision import Calibration
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from model_store.decision.staleness import TOLERATED_CHANGES
from model_store.errors import CertificateError

SCHEMA_VERSION = 2

CERTIFIED_FILES = (CALIBRATION_FILE, ARRAYS_FILE, EVALUATION_FILE)
"""The files of a bundle from which the numbers of the certificate are computed."""


@dataclass(frozen=True, slots=True)
class CertifiedBundle:
    """A verified bundle and its calibration."""

    manifest: Manifest
    calibration: Calibration


def open_certified(path: Path) -> CertifiedBundle:
    """Open the bundle at ``path``, or the current bundle of a directory of bundles.

    The function checks every byte against the manifest, but opens neither the encoder nor the
    gallery.

    Raises
    ------
    BundleError : there is no bundle, or its files do not match the manifest.
    CertificateError : the bundle is not calibrated, so it has no guarantees.
    """
    directory = locate(path)
    manifest = read_manifest(directory)
    calibration = Calibration.load(directory)
    if calibration is None:
        raise CertificateError(
            f"The bundle {manifest.id} is not calibrated, so it has no guarantees. Run "
            "`vouch-build calibrate`, or build it with `vouch-build index --calibrate`."
        )
    return CertifiedBundle(manifest, calibration)


def content(bundle: CertifiedBundle, day: date, seen: Observed | None) -> dict[str, Any]:
    """Return the statements of the certificate of ``bundle`` as a JSON object.

    Parameters
    ----------
    day : date of the certificate.
    seen : feedback records of the service; if None, the certificate has no feedback.
    """
    manifest, calibration = bundle.manifest, bundle.calibration
    return {
        "schema_version": SCHEMA_VERSION,
        "date": day.isoformat(),
        "bundle": {
            "id": manifest.id,
            "gallery": manifest.gallery.get("name"),
            "n_items": manifest.gallery.get("n_items"),
            "encoder_fingerprint": calibration.encoder_fingerprint,
            "search": dict(calibration.search),
            "sha256": {
                name: manifest.files[name]["sha256"]
                for name in CERTIFIED_FILES
                if name in manifest.files
            },
        },
        "valid_while": _valid_while(calibration),
        "population": population(calibration),
        "delta": calibration.delta,
        "promises": promises(calibration),
        "outlier_flag": outlier_flag(calibration),
        "not_promised": not_promised(calibration),
        "measured": {
            "cross_fitted": _cross_fitted(calibration),
            "evaluation": manifest.metrics,
        },
        "since": None if seen is None else since(seen, calibration.max_error),
    }


def _valid_while(calibration: Calibration) -> list[str]:
    """Return sentences on how long the guarantees hold."""
    share, n_items = calibration.default_share, int(calibration.search.get("n_items", 0))
    gallery = (
        f"The promises are for {int(calibration.n_labels.sum()):,} labels. They hold under three "
        "conditions. The number of added, replaced or removed items is at most "
        f"{TOLERATED_CHANGES:.0%} of the {n_items:,} calibrated items. Each of these labels has an "
        "item. The encoder and the search settings are unchanged."
    )
    drift = (
        "The promises do not hold for a caller while the service reports drift for this caller. "
        "The queries of this caller then differ from the calibration queries. A different share of "
        "absent queries alone does not explain the difference."
    )
    errors = (
        "The promises end when reviews of randomly drawn matches show that more than "
        f"{calibration.max_error:g} of the matches are wrong."
    )
    absent = (
        f"The promises assume a share of {share:g} absent queries. A request, an API key or the "
        "operator can set another share. The service then computes the promises for this share "
        "from the same calibration queries. Served queries do not change the share."
    )
    return [gallery, drift, errors, absent]


def _cross_fitted(calibration: Calibration) -> dict[str, Any]:
    """Measure the calibration of the cross-fitted probabilities.

    The measurement uses the assumed share π of absent queries, without correction by feedback. Each
    present query has weight 1; each absent query has weight π n_present / ((1 − π) n_absent).
    """
    evidence = calibration.evidence.of_order(calibration.order)
    absent, first = evidence.absent, evidence.first_probabilities
    n_absent, n_present = int(absent.sum()), int((~absent).sum())
    odds = calibration.assumed_absent / (1 - calibration.assumed_absent)
    weights = np.where(absent, odds * n_present / max(n_absent, 1), 1.0)
    bins = reliability(first, evidence.correct, weights=weights)
    of_nothing = evidence.no_match_probabilities
    wrong = ~evidence.correct & ~absent
    return {
        "absent_share": calibration.assumed_absent,
        "first_item_ece": calibration_error(bins),
        "first_item_correct_share_of_present": float(evidence.correct[~absent].mean()),
        "error_auroc_of_present": auroc(1 - first[wrong], 1 - first[evidence.correct]),
        "no_match_auroc": auroc(of_nothing[absent], of_nothing[~absent]),
        "reliability": [one.model_dump() for one in bins],
    }
