"""Knowing when not to answer: from a result list to probabilities and a verdict.

Fitted offline by `index_builder.calibration`, stored in the bundle, applied online by the pure
functions here. `signals` describes each label in a result list, by the list and the `label_means`;
`logistic` turns signals into probabilities, of the `found_labels` of a query, `absent_share` moves
them to the share of absent queries, `recalibration` corrects them by user
feedback; `hierarchy` knows the labels above labels, to which sums
of these probabilities roll up. `outliers` measures how unlike the gallery a query is, `picture` how
poor it is. `evidence` holds the outcome of each calibration query; `operating` computes the error
and coverage of a threshold from it, `result_sets` which items to return so that a
match is among them, and `promises` all that is promised of a stream of queries. `calibration` holds
the fitted whole; `verdict` decides; `drift` tests whether served queries still resemble those that
were calibrated with, `staleness` says that the gallery is another, and `error_watch` how often a
match is wrong, by reviews of the answers that `review_draws` draws. `betting` is the arithmetic of
`drift` and `error_watch`. `crossing` finds the bounds of shares and of
error rates. `outcome` puts into a few sentences what a calibration promises, and what it lacks.
"""

from model_store.decision.absent_share import ServedShare, ShareEstimate, estimate_absent_share
from model_store.decision.calibration import Calibration
from model_store.decision.drift import DriftReference, DriftState, DriftTest, reference_of
from model_store.decision.error_watch import (
    BlockSums,
    ErrorEstimate,
    ErrorTest,
    MatchDraw,
    MatchReview,
    estimate_error,
)
from model_store.decision.evidence import SIZE_CLASSES, Evidence, LevelEvidence, size_classes
from model_store.decision.found_labels import Retrieved, Terms
from model_store.decision.hierarchy import Hierarchy, RollUp, likeliest_parents
from model_store.decision.label_means import LabelMeans, label_means
from model_store.decision.logistic import LogisticModel, bounded_logit, choice_probabilities
from model_store.decision.operating import OperatingPoint, Stream
from model_store.decision.outcome import Outcome, OutcomeLine, outcome_of
from model_store.decision.outliers import OUTLIER_SIGNALS, OutlierDetector
from model_store.decision.promises import MatchPromise, Promises
from model_store.decision.recalibration import Recalibration, fit_recalibration
from model_store.decision.result_sets import ResultSet, ResultSetRule
from model_store.decision.review_draws import ReviewDraws
from model_store.decision.signals import SIGNALS, labels_found, signals
from model_store.decision.verdict import (
    Assessment,
    Decision,
    assess,
    decide,
    decide_without_items,
)
from model_store.verdicts import Absence, FilterMeans, Verdict

__all__ = [
    "OUTLIER_SIGNALS",
    "SIGNALS",
    "SIZE_CLASSES",
    "Absence",
    "Assessment",
    "BlockSums",
    "Calibration",
    "Decision",
    "DriftReference",
    "DriftState",
    "DriftTest",
    "ErrorEstimate",
    "ErrorTest",
    "Evidence",
    "FilterMeans",
    "Hierarchy",
    "LabelMeans",
    "LevelEvidence",
    "LogisticModel",
    "MatchDraw",
    "MatchPromise",
    "MatchReview",
    "OperatingPoint",
    "Outcome",
    "OutcomeLine",
    "OutlierDetector",
    "Promises",
    "Recalibration",
    "ResultSet",
    "ResultSetRule",
    "Retrieved",
    "ReviewDraws",
    "RollUp",
    "ServedShare",
    "ShareEstimate",
    "Stream",
    "Terms",
    "Verdict",
    "assess",
    "bounded_logit",
    "choice_probabilities",
    "decide",
    "decide_without_items",
    "estimate_absent_share",
    "estimate_error",
    "fit_recalibration",
    "label_means",
    "labels_found",
    "likeliest_parents",
    "outcome_of",
    "reference_of",
    "signals",
    "size_classes",
]
