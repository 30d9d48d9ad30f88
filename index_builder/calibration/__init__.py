"""Fits the decision layer to held-out queries; no image is ever among its own results.

`calibrate` is the entry point for builds, collections and the user's queries; `captions` is the
entry point for text queries. `plan` counts the queries before the build runs. `queries` holds the
calibration queries. `setup` describes the gallery, and `retrieval` searches this gallery with the
queries. `lists` sets the length of the result lists.

Three modules make more queries. `hidden_labels` makes absent queries by hiding labels.
`leave_one_out` uses gallery images that the encoder was not trained on. `item_queries` uses items
as queries. It embeds each item by a layer that was not fitted to this item.

`fit` runs all fits and collects the evidence for the error bounds; it also measures the most
probable parents of labels. `detector` fits the outlier detector, `probabilities` fits the match
probabilities, and `label_choices` fits the result sets. `picture_state` measures the quality of
images, and learns how far degradation moves the embedding of an image.

`kept_queries` stores the queries in the bundle, so `fit_again` needs no image. `fit_first`
calibrates a live gallery for the first time, with its items as queries. `decided_queries` adds
reviewed queries. `feedback` corrects match probabilities by users' decisions. `evaluate` evaluates
a bundle on separate queries. `open_set` measures the verdicts on queries with and without a match.
"""

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.feedback import corrected_by_feedback
from index_builder.calibration.fit import ASSUMED_ABSENT, MIN_QUERIES, fit_calibration
from index_builder.calibration.item_queries import DetectorFolds, leave_one_out_queries
from index_builder.calibration.probabilities import Examples, fit_choice
from index_builder.calibration.queries import CalibratedGallery, CalibrationQueries, LeaveOneOut

__all__ = [
    "ASSUMED_ABSENT",
    "MIN_QUERIES",
    "CalibratedGallery",
    "CalibrationQueries",
    "DetectorFolds",
    "Examples",
    "LeaveOneOut",
    "corrected_by_feedback",
    "fit_calibration",
    "fit_choice",
    "fit_detector",
    "leave_one_out_queries",
]
