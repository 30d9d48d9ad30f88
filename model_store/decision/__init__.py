"""The decision layer: from a result list to probabilities and a verdict.

`index_builder.calibration` fits the decision layer offline, and the bundle stores the decision
layer. The pure functions of this package apply the decision layer online. `signals` computes the
evidence for each label in a result list; it uses the mean direction of each label. `logistic`
converts the signals to match probabilities, and corrects them by user feedback. `found_labels`
holds the labels of one query's items, with their probabilities. `absent_share` adjusts the
probabilities to the share of absent queries. `hierarchy` holds the parents of labels; the
probability of a parent is the sum of the probabilities of its labels. `outliers` measures how much
a query differs from the gallery. `picture` measures how degraded the query's image is. `evidence`
holds the outcome of each calibration query. Three modules use this evidence: `operating` computes
the error and coverage of a threshold, `result_sets` chooses items that contain a match with a
stated probability, and `promises` computes all guarantees for a stream of queries. `calibration`
holds all fitted parts, and `verdict` chooses the verdict. `drift` tests whether served queries
still resemble the calibration queries. `staleness` detects that the gallery has changed since the
calibration. `error_watch` draws answers for review, and estimates from the reviews how often a
match is wrong. `betting` holds the arithmetic of the tests in `drift` and `error_watch`. `outcome`
summarises a calibration's guarantees and shortfalls in a few sentences.
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
from model_store.decision.evidence import SIZE_CLASSES, Evidence, LevelEvidence, size_classes
from model_store.decision.found_labels import Retrieved, Terms
from model_store.decision.hierarchy import Hierarchy, likeliest_parents
from model_store.decision.logistic import (
    LogisticModel,
    Recalibration,
    bounded_logit,
    choice_probabilities,
    fit_recalibration,
)
from model_store.decision.operating import Stream
from model_store.decision.outcome import outcome_of
from model_store.decision.outliers import OUTLIER_SIGNALS, LabelMeans, OutlierDetector, label_means
from model_store.decision.promises import MatchThreshold, Promises
from model_store.decision.result_sets import ResultSetChoice, ResultSetRule
from model_store.decision.signals import SIGNALS, labels_found, signals
from model_store.decision.verdict import (
    Assessment,
    Decision,
    assess,
    decide,
    decide_without_items,
)
from model_store.messages import Absence, FilterMeans, Verdict
