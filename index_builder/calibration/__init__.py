"""Fitting the decision layer on held-out queries, never on the gallery's own images.

`detector` learns what tells alien images apart, `probabilities` what makes a match likely; `fit`
puts both together with what follows from them: operating points, result sets, a report.
"""

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.fit import (
    MIN_QUERIES,
    CalibrationQueries,
    fit_calibration,
    operating_curve,
)
from index_builder.calibration.probabilities import fit_logistic, fit_venn_abers

__all__ = [
    "MIN_QUERIES",
    "CalibrationQueries",
    "fit_calibration",
    "fit_detector",
    "fit_logistic",
    "fit_venn_abers",
    "operating_curve",
]
