"""Knowing when not to answer: from a result list to probabilities and a verdict.

Fitted offline by `index_builder.calibration`, stored in the bundle, applied online by the pure
functions here. `signals` says what a result list and the `label_means` know of each label in it;
`logistic` turns signals into probabilities, `recalibration` corrects them by what users said, and
`venn_abers` says what they lie between; `outliers` measures how alien a query is; `result_sets`
chooses as few items as hold a match; `operating` says what each threshold on a probability would
cost; `calibration` holds the fitted whole; `verdict` decides; `drift` watches whether all of that
still holds.
"""

from model_store.decision.calibration import Calibration
from model_store.decision.drift import DriftTest
from model_store.decision.label_means import LabelMeans, label_means
from model_store.decision.logistic import LogisticModel, bounded_logit, choice_probabilities
from model_store.decision.operating import OperatingCurve, OperatingPoint
from model_store.decision.outliers import OUTLIER_SIGNALS, OutlierDetector, OutlierFusion
from model_store.decision.recalibration import Recalibration
from model_store.decision.result_sets import ResultSet, ResultSetRule
from model_store.decision.signals import SIGNALS, labels_found, signals
from model_store.decision.venn_abers import VennAbers
from model_store.decision.verdict import Assessment, Decision, assess, decide
from model_store.verdicts import Verdict

__all__ = [
    "OUTLIER_SIGNALS",
    "SIGNALS",
    "Assessment",
    "Calibration",
    "Decision",
    "DriftTest",
    "LabelMeans",
    "LogisticModel",
    "OperatingCurve",
    "OperatingPoint",
    "OutlierDetector",
    "OutlierFusion",
    "Recalibration",
    "ResultSet",
    "ResultSetRule",
    "VennAbers",
    "Verdict",
    "assess",
    "bounded_logit",
    "choice_probabilities",
    "decide",
    "label_means",
    "labels_found",
    "signals",
]
