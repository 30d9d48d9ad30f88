"""The metrics of an evaluation, as pure functions of arrays.

=================  ==============================================================================
`ranking`          ranked lists: recall at k, mAP at k, mAP at R, average precision
`calibration`      probabilities: reliability, calibration error, Brier score, consensus
`separation`       positives against negatives: AUROC, AUPRC, FPR at 95 %
`selective`        selective answering: sparsification, AUSC, AURC, AUGRC
`open_set`         queries with and without a match: detection and identification, OSCR
`structure`        the embedding itself: NMI, entropy, feature and cluster diversity
`pages`            HTML templates and number formats
=================  ==============================================================================

An undefined metric, for example a rate over an empty set, is None. NaN raises a ``ValueError``.
Metrics do not depend on the order of the images. A threshold never separates images with equal
values. If several images have equal values, their order could change a result. Each of these images
then gets the mean result of all of them.
"""

from index_builder.metrics.calibration import (
    ReliabilityBin,
    brier,
    calibration_error,
    calibration_spread,
    consensus,
    evened,
    expected_calibration_error,
    reliability,
    reliability_by_width,
    retrieval_calibration_error,
)
from index_builder.metrics.open_set import (
    detection_and_identification_rate,
    open_set_classification_rate,
)
from index_builder.metrics.ranking import average_precision, map_at_k, map_at_r, recall_at_k
from index_builder.metrics.selective import augrc, aurc, ausc, risk_coverage, sparsification
from index_builder.metrics.separation import auprc, auroc, error_auroc, fpr_at_tpr, roc
from index_builder.metrics.structure import (
    cluster_diversity,
    feature_diversity,
    mean_nn_entropy,
    normalised_mutual_information,
)

__all__ = [
    "ReliabilityBin",
    "augrc",
    "auprc",
    "aurc",
    "auroc",
    "ausc",
    "average_precision",
    "brier",
    "calibration_error",
    "calibration_spread",
    "cluster_diversity",
    "consensus",
    "detection_and_identification_rate",
    "error_auroc",
    "evened",
    "expected_calibration_error",
    "feature_diversity",
    "fpr_at_tpr",
    "map_at_k",
    "map_at_r",
    "mean_nn_entropy",
    "normalised_mutual_information",
    "open_set_classification_rate",
    "recall_at_k",
    "reliability",
    "reliability_by_width",
    "retrieval_calibration_error",
    "risk_coverage",
    "roc",
    "sparsification",
]
