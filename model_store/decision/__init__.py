"""The decision layer: from a result list to probabilities and a verdict.

`index_builder.calibration` fits the decision layer offline, and the bundle stores the decision
layer. The pure functions of this package apply the decision layer online. `probabilities` computes
the signals of each label in a result list, and converts them to match probabilities. It adjusts the
probabilities to the share of absent queries, and corrects them by user feedback. `absent_share`
estimates this share. `outliers` measures how much a query differs from the gallery, and how
degraded its image is. It also holds the mean direction of each label. `evidence` holds the outcome
of each calibration query, and the parents of labels. Two modules use this evidence: `operating`
computes the error and coverage of a threshold, and `promises` computes all guarantees for a stream
of queries, and chooses result sets. `calibration` holds all fitted parts, and detects that the
gallery has changed. `verdict` finds the labels of one query's items, and chooses the verdict.
`drift` tests whether served queries still resemble the calibration queries. `error_watch` draws
answers for review, and estimates from the reviews how often a match is wrong. It also holds the
bets of both running tests. `outcome` summarises a calibration's guarantees and shortfalls in a few
sentences.
"""

from model_store.decision.absent_share import ServedShare, ShareEstimate, ShareReference
from model_store.decision.calibration import Calibration
from model_store.decision.drift import DriftState, DriftTest, reference_of
from model_store.decision.error_watch import (
    BlockSums,
    ErrorEstimate,
    ErrorTest,
    MatchDraw,
    MatchReview,
    ReviewDraws,
    estimate_error,
)
from model_store.decision.evidence import (
    SIZE_CLASSES,
    Evidence,
    Hierarchy,
    LevelEvidence,
    likeliest_parents,
    size_classes,
)
from model_store.decision.operating import Stream
from model_store.decision.outcome import outcome_of
from model_store.decision.outliers import OUTLIER_SIGNALS, LabelMeans, OutlierDetector, label_means
from model_store.decision.probabilities import (
    SIGNALS,
    LogisticModel,
    MatchModel,
    Recalibration,
    bounded_logit,
    choice_probabilities,
    fit_recalibration,
    labels_found,
    signals,
)
from model_store.decision.promises import MatchThreshold, Promises, ResultSetChoice, ResultSetRule
from model_store.decision.verdict import (
    Assessment,
    Decision,
    Retrieved,
    Terms,
    assess,
    decide,
    decide_without_items,
)
from model_store.messages import Absence, FilterMeans, Verdict
