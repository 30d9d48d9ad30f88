"""Examples in the docstrings of the core's public names: they run against a gallery."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import model_store
from model_store.decision.verdict import Terms

PHOTOGRAPH = Path(__file__).parents[2] / "docs" / "demo" / "samples" / "flamingo.webp"
NEEDS_A_TEXT_ENCODER = {"search_text"}


def source_of(thing: object) -> str:
    examples = doctest.DocTestParser().get_examples(thing.__doc__ or "")
    return "".join(example.source for example in examples)


@pytest.mark.parametrize("name", model_store.__all__)
def test_example_of_each_public_name_runs(
    name: str, digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "demo").symlink_to(digits_bundle.absolute())
    (tmp_path / "photo.png").write_bytes(PHOTOGRAPH.read_bytes())
    monkeypatch.chdir(tmp_path)
    code = compile(source_of(getattr(model_store, name)), name, "exec")
    assert code.co_names
    if name not in NEEDS_A_TEXT_ENCODER:
        names = {one: getattr(model_store, one) for one in model_store.__all__}
        exec(code, {**names, "Path": Path, "Terms": Terms})
