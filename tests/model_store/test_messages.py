"""The catalogue of messages: sentences are made from codes, and codes survive."""

from __future__ import annotations

import copy
import pickle
import re
import string

import pytest

from model_store.messages import MESSAGES, Message, joined, message


@pytest.mark.parametrize("code", MESSAGES)
def test_message_of_each_code_names_all_of_its_parameters(code: str) -> None:
    names = [name for _, name, form, _ in string.Formatter().parse(MESSAGES[code]) if name]
    values = {name: f"<{name}>" for name in names}
    text = message(code, **values)
    assert text.code == code
    assert all(value in text for value in values.values())
    assert re.fullmatch(r"[a-z_]+", code)
    if names:
        with pytest.raises(KeyError):
            message(code)


def test_message_is_a_sentence_with_its_code() -> None:
    cause = message("absent_labels_too_few", n_labels=3, n_more=10)
    found = message("probabilities_uncertain", share=0.2, cause=cause)
    assert found.startswith("With a share of 0.2 absent queries, probabilities may be far off: ")
    assert found.as_json() == {
        "code": "probabilities_uncertain",
        "parameters": {
            "share": 0.2,
            "cause": {
                "code": "absent_labels_too_few",
                "parameters": {"n_labels": 3, "n_more": 10},
            },
        },
    }
    for again in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert isinstance(again, Message)
        assert (again, again.as_json()) == (found, found.as_json())


def test_joined_keeps_one_message_and_lists_several() -> None:
    one, two = message("gallery_empty"), message("drifted")
    assert joined([]) is None
    assert joined([one]) is one
    both = joined([one, two])
    assert both == f"{one} {two}"
    assert both is not None
    assert [each["code"] for each in both.as_json()["parameters"]["messages"]] == [  # type: ignore[index]
        "gallery_empty",
        "drifted",
    ]


def test_unknown_code_raises() -> None:
    with pytest.raises(KeyError):
        message("no_such_code")
