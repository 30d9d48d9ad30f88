"""Converts records of the core to the JSON of the service, for several modules of routes.

An answer that one module of routes gives is built in that module, unless it is long.

::

    search        results, assessments, embeddings
    items         items and their pages
    galleries     galleries and their calibration
    bundles       the served bundle and its encoder
    review        queries kept for review
    labelling     review cases in the formats of labelling tools
"""

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
from service.http.answers.review import case_list, leases, review_case, review_summary
from service.http.answers.search import (
    assessment_answer,
    embedding_answer,
    record,
    search_answer,
    similar_answer,
)

__all__ = [
    "assessment_answer",
    "calibration_report",
    "case_list",
    "embedding_answer",
    "facet_list",
    "gallery_detail",
    "gallery_list",
    "item_detail",
    "item_list",
    "label_list",
    "leases",
    "operating_point",
    "operator_decision",
    "picture_urls",
    "record",
    "review_case",
    "review_summary",
    "search_answer",
    "similar_answer",
]
