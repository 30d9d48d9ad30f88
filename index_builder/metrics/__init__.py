"""The metrics of an evaluation, as pure functions of arrays.

=================  ==============================================================================
`embedding`        ranked lists: recall at k, mAP at k, mAP at R, average precision; and the
                   structure of an embedding: NMI, entropy, feature and cluster diversity
`calibration`      probabilities: reliability, calibration error, Brier score, consensus
`uncertainty`      positives against negatives: AUROC, AUPRC, FPR at 95 %; selective answering:
                   sparsification, AUSC, AURC, AUGRC; queries with and without a match: detection
                   and identification, OSCR
=================  ==============================================================================

An undefined metric, for example a rate over an empty set, is None. NaN raises a ``ValueError``.
Metrics do not depend on the order of the images. A threshold never separates images with equal
values. If several images have equal values, their order could change a result. Each of these images
then gets the mean result of all of them.
"""

from index_builder.metrics.calibration import (
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
from index_builder.metrics.embedding import (
    average_precision,
    cluster_diversity,
    feature_diversity,
    map_at_k,
    map_at_r,
    mean_nn_entropy,
    normalised_mutual_information,
    recall_at_k,
)
from index_builder.metrics.uncertainty import (
    augrc,
    auprc,
    aurc,
    auroc,
    ausc,
    detection_and_identification_rate,
    error_auroc,
    fpr_at_tpr,
    open_set_classification_rate,
    risk_coverage,
    roc,
    sparsification,
)

__all__ = [
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
