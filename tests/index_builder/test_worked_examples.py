"""The worked examples of CONTRIBUTING.md: their code is run as it stands there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from index_builder.configuration import objective
from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.sources.places import LocalPlaces
from index_builder.objectives import distances
from tests.index_builder.objectives import test_pairwise_objectives
from tests.support.small_batches import LABELS, embeddings

PAGE = Path(__file__).parents[2] / ".github" / "CONTRIBUTING.md"


def code(name: str) -> str:
    """The block that defines ``name``."""
    blocks = re.findall(
        r"^ +```python\n(.*?)^ +```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (block,) = [one for one in blocks if f"def {name}(" in one or f"class {name}" in one]
    return textwrap.dedent(block)


def test_loss_of_the_example_equals_its_loops() -> None:
    module = dict(vars(distances))
    exec(code("lifted_structure"), module)
    loops = dict(vars(test_pairwise_objectives))
    exec(code("lifted_by_loops"), loops)
    z = embeddings()
    value = module["lifted_structure"](z, LABELS, margin=1.0)
    assert value.item() > 0
    assert value.item() == pytest.approx(loops["lifted_by_loops"](z).item())


def test_table_of_the_example_is_validated() -> None:
    module = dict(vars(objective))
    exec(code("LiftedStructureConfig"), module)
    table = module["LiftedStructureConfig"]
    table.model_rebuild(_types_namespace=module)
    assert table(kind="lifted_structure").margin == 1.0
    with pytest.raises(ValueError, match="greater than 0"):
        table(kind="lifted_structure", margin=0)


def test_source_of_the_example_lists_its_lines(tmp_path: Path) -> None:
    module: dict[str, object] = {"__name__": __name__}
    exec(code("PathList"), module)
    source: type = module["PathList"]  # type: ignore[assignment]
    listed = tmp_path / "mine.txt"
    listed.write_text("b.png\n\na.png\n", "utf-8")
    found = list(source(listed, LocalPlaces(tmp_path)).entries(tmp_path, LeftOut()))
    assert [entry.id for entry in found] == ["b.png", "a.png"]
