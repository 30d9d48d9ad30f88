"""Fitting the decision layer on held-out queries, never on an image that finds itself.

`queries` are what everything is fitted to. `detector` is fitted to recognise out-of-distribution
images, `probabilities` what makes a match likely, `label_choices` what result sets choose among,
`levels` what stands above labels; `fit` puts them together with the evidence that promises are
computed from. `hidden_labels` makes absent queries of matched ones, and `leave_one_out` queries of
gallery images, where the encoder has learned nothing from them; `item_queries` are items, embedded
by layers that have not seen them; `plan` counts all of them before the work; `calibrate` is the way
in, for the build of a configuration, for any collection, and for queries of the user, and
`captions` for queries in words; `pictures` measures the quality of images, and `picture_state`
learns how far a poor one moves its embedding; `retrieval` retrieves what it is fitted to, in
`lists` of one length, as a `setup` knows the gallery; `kept_queries` stay in the bundle, so that
`fit_again` needs no image, and `decided_queries` join them; `feedback` corrects probabilities by
users' decisions; `evaluate` measures a bundle on queries used for nothing else, and `open_set` on
streams with absent queries.
"""

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.feedback import corrected_by_feedback
from index_builder.calibration.fit import ASSUMED_ABSENT, MIN_QUERIES, fit_calibration
from index_builder.calibration.hidden_labels import LabelFolds, fit_label_folds
from index_builder.calibration.leave_one_out import DetectorFolds, leave_one_out_queries
from index_builder.calibration.probabilities import Examples, fit_choice
from index_builder.calibration.queries import CalibratedGallery, CalibrationQueries, LeaveOneOut

__all__ = [
    "ASSUMED_ABSENT",
    "MIN_QUERIES",
    "CalibratedGallery",
    "CalibrationQueries",
    "DetectorFolds",
    "Examples",
    "LabelFolds",
    "LeaveOneOut",
    "corrected_by_feedback",
    "fit_calibration",
    "fit_choice",
    "fit_detector",
    "fit_label_folds",
    "leave_one_out_queries",
]
