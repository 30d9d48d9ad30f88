"""Fits the decision layer to held-out queries; no image is ever among its own results.

`calibrate` is the entry point for builds, collections, the user's queries and captions. `plan`
counts the queries before the build runs. `inputs` has the gallery and its queries. `queries` has
one record for each kind of query. `retrieval` searches the gallery with the queries, and makes
absent queries by hiding labels. `item_queries` uses items of the gallery as queries, and
`layer_gallery` embeds the gallery by layers that were fitted without these items.

`fit` runs all fits and collects the evidence for the error bounds; it also measures the most
probable parents of labels. `detector` fits the outlier detector and the head that measures image
degradation. `probabilities` fits the match probabilities, measures result sets, and corrects match
probabilities by users' decisions.

`kept_queries` stores the queries in the bundle, with those that were reviewed, so `fit_again` needs
no image. `evaluate` evaluates a bundle on separate queries, with and without a match.
"""

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.fit import ASSUMED_ABSENT, MIN_QUERIES, fit_calibration
from index_builder.calibration.item_queries import DetectorFolds, leave_one_out_queries
from index_builder.calibration.probabilities import Examples, corrected_by_feedback, fit_choice
from index_builder.calibration.queries import CalibrationQueries, QueryGroup
from index_builder.calibration.retrieval import CalibratedGallery

__all__ = [
    "ASSUMED_ABSENT",
    "MIN_QUERIES",
    "CalibratedGallery",
    "CalibrationQueries",
    "DetectorFolds",
    "Examples",
    "QueryGroup",
    "corrected_by_feedback",
    "fit_calibration",
    "fit_choice",
    "fit_detector",
    "leave_one_out_queries",
]
