"""Knowing when not to answer: from a result list to probabilities and a verdict.

Fitted offline by `index_builder.calibration`, stored in the bundle, applied online by the pure
functions here. `signals` says what a result list knows; `logistic` turns signals into
probabilities; `outliers` measures how alien a query is; `operating` says what each
threshold on a probability would cost; `calibration` holds the fitted whole;
`verdict` decides.
"""

from model_store.decision.calibration import Calibration
from model_store.decision.logistic import LogisticModel
from model_store.decision.operating import OperatingCurve, OperatingPoint
from model_store.decision.outliers import OutlierDetector
from model_store.decision.signals import SIGNALS, signals
from model_store.decision.verdict import Assessment, Decision, Verdict, assess, decide

__all__ = [
    "SIGNALS",
    "Assessment",
    "Calibration",
    "Decision",
    "LogisticModel",
    "OperatingCurve",
    "OperatingPoint",
    "OutlierDetector",
    "Verdict",
    "assess",
    "decide",
    "signals",
]
