"""Fitting the decision layer on held-out queries, never on an image that finds itself.

`detector` learns what tells alien images apart, `probabilities` what makes a match likely; `fit`
puts both together with what follows from them: operating points, result sets, a report. `left_out`
adds gallery images to too few queries, where the encoder has learned nothing from them;
`of_gallery` is the way in, for the build of a configuration and for any collection; `feedback`
corrects the whole by what users said of it.
"""

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.feedback import corrected_by_feedback, fit_recalibration
from index_builder.calibration.fit import (
    MIN_QUERIES,
    CalibrationQueries,
    LeftOut,
    fit_calibration,
    operating_curve,
)
from index_builder.calibration.left_out import left_out_queries, out_of_fold_signals
from index_builder.calibration.probabilities import (
    Examples,
    fit_choice,
    fit_logistic,
    fit_venn_abers,
)

__all__ = [
    "MIN_QUERIES",
    "CalibrationQueries",
    "Examples",
    "LeftOut",
    "corrected_by_feedback",
    "fit_calibration",
    "fit_choice",
    "fit_detector",
    "fit_logistic",
    "fit_recalibration",
    "fit_venn_abers",
    "left_out_queries",
    "operating_curve",
    "out_of_fold_signals",
]
