"""Converts records of the core to the JSON of the service.

Most modules have the same name as a module of `service.schemas`.

::

    search        results, assessments, embeddings
    vectors       decisions on neighbours of other stores
    items         items and their pages
    maps          items in two dimensions
    curation      near duplicates and possible label errors
    changes       receipts of written items
    galleries     galleries and their calibration
    bundles       the served bundle, and the other bundles of a gallery
    feedback      decisions on queries
    review        queries kept for review
    unknown       groups of queries without a match
    labelling     review cases in the formats of labelling tools
    shadow        the comparison of a shadow bundle with the served bundle
    operations    readiness
"""

from service.http.answers.bundles import activation, bundle_list, bundle_state
from service.http.answers.changes import batch_written, item_written
from service.http.answers.curation import label_error_list, near_duplicate_list
from service.http.answers.feedback import decision, decision_list, feedback_answer
from service.http.answers.galleries import (
    calibration_report,
    facet_list,
    gallery_detail,
    gallery_list,
    label_list,
    operating_point,
    operator_decision,
)
from service.http.answers.items import item_detail, item_list, picture_urls
from service.http.answers.maps import gallery_map, map_items
from service.http.answers.operations import ready
from service.http.answers.review import case_list, leases, review_case, review_summary
from service.http.answers.search import (
    assessment_answer,
    embedding_answer,
    record,
    search_answer,
    similar_answer,
)
from service.http.answers.shadow import shadow_report
from service.http.answers.unknown import enrolled, unknown_groups
from service.http.answers.vectors import decision_answer

__all__ = [
    "activation",
    "assessment_answer",
    "batch_written",
    "bundle_list",
    "bundle_state",
    "calibration_report",
    "case_list",
    "decision",
    "decision_answer",
    "decision_list",
    "embedding_answer",
    "enrolled",
    "facet_list",
    "feedback_answer",
    "gallery_detail",
    "gallery_list",
    "gallery_map",
    "item_detail",
    "item_list",
    "item_written",
    "label_error_list",
    "label_list",
    "leases",
    "map_items",
    "near_duplicate_list",
    "operating_point",
    "operator_decision",
    "picture_urls",
    "ready",
    "record",
    "review_case",
    "review_summary",
    "search_answer",
    "shadow_report",
    "similar_answer",
    "unknown_groups",
]
