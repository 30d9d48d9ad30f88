"""Each package names its modules, and imports slow libraries late."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG, LONGEST

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    init.parent.relative_to(ROOT)
    for name in ("service", "model_store", "index_builder", "vouch_search")
    for init in (ROOT / name).rglob("__init__.py")
)


def modules(package: Path) -> set[str]:
    return {path.stem for path in (ROOT / package).glob("*.py")}


def folders(package: Path) -> set[str]:
    inside = (ROOT / package).iterdir()
    return {path.name for path in inside if path.is_dir() and not path.name.startswith("_")}


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_a_package_names_all_its_rooms(package: Path) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text("utf-8")))
    rooms = modules(package) - {"__init__", "__main__"}
    rooms |= {name for name in folders(package) if (ROOT / package / name / "__init__.py").exists()}
    missing = rooms - set(re.findall(r"\w+", text or ""))
    assert not missing, f"{package}/__init__.py does not say what {sorted(missing)} are"


NO_TORCH = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    assert "torch" not in sys.modules, module
"""


@pytest.mark.process
def test_no_module_of_tests_but_the_builder_s_imports_torch() -> None:
    # The one that is left out makes thousands of requests when it is read.
    left_out = ("tests/index_builder/", "tests/end_to_end/test_any_request.py")
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in files)
    modules = [
        name.removesuffix(".py").replace("/", ".")
        for name in names
        if not name.startswith(left_out)
    ]
    assert len(modules) > 150
    subprocess.run([sys.executable, "-c", NO_TORCH, *modules], check=True, cwd=ROOT)


UNUSED_AT_FIRST = {
    "service.health_check": ("numpy", "pydantic", "importlib.metadata"),
    "service.__main__": ("numpy", "pydantic", "importlib.metadata"),
    "service.decoding.worker": ("pydantic", "scipy"),
    "service.encoding.process": ("scipy", "redis"),
    "service.app": ("scipy.stats", "scipy.optimize", "scipy.spatial", "redis", "sklearn"),
    "index_builder.indexing.collection": ("scipy.stats", "sklearn", "torch"),
}
"""Libraries that take long to import, and that a module leaves to whoever needs them; modules in an
order in which none imports what one before it leaves out."""

IMPORTED = """
import importlib, json, sys
for module, unused in json.loads(sys.argv[1]).items():
    importlib.import_module(module)
    assert not set(unused) & set(sys.modules), (module, set(unused) & set(sys.modules))
"""


@pytest.mark.process
def test_slow_libraries_are_imported_by_whoever_needs_them() -> None:
    command = [sys.executable, "-c", IMPORTED, json.dumps(UNUSED_AT_FIRST)]
    subprocess.run(command, check=True, cwd=ROOT)


def test_the_tests_that_are_begun_first_exist() -> None:
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(LONGEST) <= names
    assert set(LONG) <= folders(Path("tests"))
