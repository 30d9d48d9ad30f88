"""The build hook of the wheel: everything is installed under one name, `vouch_search`.

In the repository `service`, `model_store` and `index_builder` are top-level packages. In
site-packages these names would meet those of other projects. So the wheel has them as
`vouch_search.service` and so on, and their imports are renamed.

Python's parser finds what is renamed: the module of ``from X import``, and a string that is the
dotted name of one of our modules, such as the argument of ``import_module`` or of ``python -m``.
Every other way to name a module is refused, so that none is missed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "vouch_search"
PARTS = ("index_builder", "model_store", "service")
LEFT_OUT = frozenset({"service/client/element"})
"""Folders that are no part of the Python distribution."""


class OneNameHook(BuildHookInterface[Any]):
    """Adds the packages of the repository to the wheel as parts of `vouch_search`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the renamed modules to a folder, and have the wheel include them."""
        if version == "editable":
            return
        root = Path(self.root)
        modules = modules_below(root)
        self._folder = TemporaryDirectory()
        for path in sorted(self._files(root)):
            place = path.relative_to(root).as_posix()
            source = path
            if path.suffix == ".py":
                source = Path(self._folder.name) / place
                source.parent.mkdir(parents=True, exist_ok=True)
                text = path.read_text("utf-8")
                source.write_text(renamed(text, modules, place), "utf-8")
            below = place.removeprefix(f"{NAME}/")
            build_data["force_include"][str(source)] = f"{NAME}/{below}"

    def finalize(self, version: str, *_: object) -> None:
        """Remove the folder."""
        if version != "editable":
            self._folder.cleanup()

    def _files(self, root: Path) -> Iterator[Path]:
        for name in (NAME, *PARTS):
            for path in (root / name).rglob("*"):
                place = path.relative_to(root).as_posix()
                if (
                    path.is_file()
                    and path.name != "README.md"
                    and not place.startswith(tuple(f"{one}/" for one in LEFT_OUT))
                    and self.build_config.include_path(place, explicit=True)
                ):
                    yield path


def modules_below(root: Path) -> frozenset[str]:
    """Return the dotted names of all modules of the packages that are renamed."""
    return frozenset(
        ".".join((path.parent if path.name == "__init__.py" else path.with_suffix("")).parts)
        for name in PARTS
        for file in (root / name).rglob("*.py")
        for path in [file.relative_to(root)]
    )


def renamed(source: str, modules: Collection[str], where: str) -> str:
    """Return a module's source with our modules as parts of `vouch_search`.

    Parameters
    ----------
    modules : dotted names of our modules.
    where : the file, for messages.

    Raises
    ------
    ValueError : it names one of our modules in a way that is not renamed.
    """
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()
    edits = []
    for node in ast.walk(ast.parse(source, where)):
        if isinstance(node, ast.Import) and any(_is_ours(name.name) for name in node.names):
            raise ValueError(f"{where}:{node.lineno}: write `from package import name`.")
        if isinstance(node, ast.JoinedStr) and any(map(_begins_a_module, node.values)):
            raise ValueError(f"{where}:{node.lineno}: a module's name cannot be an f-string.")
        if isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
            pattern = rb"from\s+"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if "." not in node.value or node.value not in modules:
                continue
            pattern = rb"[\"']" + re.escape(node.value.encode()) + rb"[\"']"
        else:
            continue
        at = starts[node.lineno - 1] + node.col_offset
        found = re.compile(pattern).match(data, at)
        if found is None:
            raise ValueError(f"{where}:{node.lineno}: a module's name is in an unusual string.")
        edits.append(at + 1 if isinstance(node, ast.Constant) else found.end())
    for place in sorted(edits, reverse=True):
        data = data[:place] + f"{NAME}.".encode() + data[place:]
    return data.decode()


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PARTS


def _begins_a_module(part: ast.expr) -> bool:
    text = part.value if isinstance(part, ast.Constant) else ""
    return isinstance(text, str) and re.match(rf"({'|'.join(PARTS)})\.", text) is not None
