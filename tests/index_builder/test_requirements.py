"""Requirements on the outcome of a build, read and checked."""

from __future__ import annotations

import pytest

from index_builder.commands.outcome import parse_requirements
from model_store.errors import UsageError
from model_store.messages import OUTCOME_NUMBERS
from tests.support.calibration_evidence import outcome

FOUND = outcome(recall_at_1=0.8, match_share=0.3, n_queries=40)


def shortfalls(text: str) -> list[str]:
    return [said for one in parse_requirements(text) if (said := one.shortfall(FOUND)) is not None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recall_at_1>=0.8,match_share>=0.3", []),
        ("recall_at_1 <= 0.8, n_queries >= 40", []),
        ("recall_at_1>=0.81", ["recall_at_1 is 0.8 (wanted >= 0.81)"]),
        ("match_share<=0.29,n_queries>=41", [
            "match_share is 0.3 (wanted <= 0.29)", "n_queries is 40 (wanted >= 41)",
        ]),
        ("match_error<=1", ["match_error is not known (wanted <= 1)"]),
    ],
)  # fmt: skip
def test_requirements_list_what_is_not_met(text: str, said: list[str]) -> None:
    assert shortfalls(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a comparison"),
        ("recall_at_1>0.8", "not a comparison. Write NAME>=NUMBER"),
        ("recall_at_1>=0.8,", "'' is not a comparison"),
        (
            "recal_at_1>=0.8",
            r"'recal_at_1' is not a number .* Did you mean recall_at_1\? Accepted: n_",
        ),
        (
            "speed>=0.8",
            r"'speed' is not a number of the outcome. Accepted: n_queries, recall_at_1,",
        ),
        ("recall_at_1>=80", "recall_at_1>=80: wanted a share between 0 and 1"),
        ("recall_at_1>=nan", "wanted a share between 0 and 1"),
        ("match_share>=most", "wanted a share between 0 and 1"),
        ("n_queries>=-1", "wanted a number of at least 0"),
    ],
)
def test_requirement_that_cannot_be_checked_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_requirements(text)


def test_every_number_can_be_required() -> None:
    parsed = parse_requirements(",".join(f"{name}>=0.5" for name in OUTCOME_NUMBERS))
    assert [one.name for one in parsed] == list(OUTCOME_NUMBERS)
