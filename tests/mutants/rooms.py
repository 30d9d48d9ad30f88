"""The rooms that mutants are made in, and the tests that should see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Room:
    """The files that mutants are made in, and the tests that should see them, as patterns."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


CORE = "tests/model_store"
SERVICE = "tests/service"
BUILDER = "tests/index_builder"
PAGE = "tests/end_to_end/test_page"

ROOMS = {
    "page": Room(("service/http/page/*.js",), (f"{PAGE}_words.py", f"{PAGE}_*.py", f"{PAGE}.py")),
    "access": Room(
        ("service/access/*.py",),
        (
            f"{SERVICE}/test_access*.py",
            f"{SERVICE}/test_keys*.py",
            f"{SERVICE}/test_hosts.py",
            f"{SERVICE}/test_proxies.py",
            f"{SERVICE}/test_rate*.py",
            f"{SERVICE}/test_nonsense_redis.py",
            f"{SERVICE}/test_ways_in.py",
            f"{SERVICE}/test_openapi.py",
            f"{SERVICE}/test_tenants.py",
            f"{SERVICE}/test_audit.py",
            f"{SERVICE}/test_fair_share.py",
            f"{SERVICE}/test_secrets_in_the_log.py",
        ),
    ),
    "routes": Room(
        ("service/http/routes/*.py", "service/serving/created.py"),
        (
            f"{SERVICE}/test_access.py",
            f"{SERVICE}/test_tenants.py",
            f"{SERVICE}/test_openapi.py",
            f"{SERVICE}/test_changes.py",
            f"{SERVICE}/test_galleries.py",
            f"{SERVICE}/test_review.py",
            f"{SERVICE}/test_enrolling_decisions.py",
            f"{SERVICE}/test_feedback.py",
            f"{SERVICE}/test_first_gallery.py",
            f"{SERVICE}/test_items.py",
            f"{SERVICE}/test_maps.py",
            f"{SERVICE}/test_vectors.py",
        ),
    ),
    "bundles": Room(
        ("model_store/bundles/*.py", "model_store/files.py", "model_store/items.py"),
        (
            f"{CORE}/test_archive.py",
            f"{CORE}/test_bundle*.py",
            f"{CORE}/test_compaction.py",
            f"{BUILDER}/indexing/test_recalibrated_items.py",
            f"{CORE}/test_files.py",
            f"{CORE}/test_gallery_folder.py",
            f"{CORE}/test_history.py",
            f"{CORE}/test_intact.py",
            f"{CORE}/test_item_ids.py",
            f"{CORE}/test_retention*.py",
            f"{CORE}/test_shadow_terms.py",
            f"{CORE}/test_signatures.py",
            f"{CORE}/test_upgrade.py",
        ),
    ),
    "decision": Room(
        ("model_store/decision/*.py",),
        (
            f"{CORE}/decision/test_*.py",
            f"{CORE}/test_history.py",
            f"{CORE}/test_order.py",
            f"{CORE}/test_review_queue.py",
            f"{CORE}/test_feedback.py",
            f"{BUILDER}/test_calibration.py",
            f"{BUILDER}/test_feedback.py",
            f"{BUILDER}/test_leave_one_out.py",
            f"{BUILDER}/test_probabilities.py",
            f"{BUILDER}/certificates/test_content.py",
            f"{SERVICE}/test_calibration.py",
            f"{SERVICE}/test_absent_share.py",
            f"{SERVICE}/test_feedback.py",
            f"{SERVICE}/test_roll_up.py",
        ),
    ),
    "gallery": Room(
        ("model_store/gallery/*.py", "model_store/gallery/[!m]*/*.py", "model_store/sqlite.py"),
        (
            f"{CORE}/test_gallery*.py",
            f"{CORE}/test_filters.py",
            f"{CORE}/test_filter_indexes.py",
            f"{CORE}/test_facets.py",
            f"{CORE}/test_index.py",
            f"{CORE}/test_row_blocks.py",
            f"{CORE}/test_live_*.py",
            f"{CORE}/test_search.py",
            f"{CORE}/test_order.py",
            f"{CORE}/test_retriever.py",
            f"{CORE}/test_compaction.py",
            f"{SERVICE}/test_filters.py",
            f"{SERVICE}/test_changes.py",
        ),
    ),
    "milvus": Room(("model_store/gallery/milvus/*.py",), (f"{CORE}/test_milvus*.py",)),
    "indexing": Room(
        ("index_builder/indexing/*.py", "index_builder/indexing/sources/*.py"),
        (
            f"{BUILDER}/indexing/test_*.py",
            f"{BUILDER}/test_captions.py",
            f"{BUILDER}/test_encode_once.py",
            f"{BUILDER}/test_index_settings.py",
        ),
    ),
    "calibration": Room(
        ("index_builder/calibration/*.py",),
        (
            f"{BUILDER}/test_calibration.py",
            f"{BUILDER}/test_evaluation.py",
            f"{BUILDER}/test_feedback.py",
            f"{BUILDER}/test_leave_one_out.py",
            f"{BUILDER}/test_probabilities.py",
            f"{BUILDER}/indexing/test_calibrating.py",
            f"{BUILDER}/indexing/test_item_groups.py",
        ),
    ),
    "posteriors": Room(
        ("index_builder/posteriors/*.py", "index_builder/posteriors/laplace/*.py"),
        (
            f"{BUILDER}/posteriors/test_*.py",
            f"{BUILDER}/objectives/test_*.py",
            f"{BUILDER}/test_export.py",
            f"{BUILDER}/test_laplace_methods.py",
            f"{BUILDER}/networks/test_torchvision_trunk.py",
        ),
    ),
}


def files(root: Path, patterns: Iterable[str]) -> list[str]:
    """Return the files of a tree that any pattern names, in the order of the patterns."""
    found = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return list(dict.fromkeys(str(path.relative_to(root)) for path in found))
