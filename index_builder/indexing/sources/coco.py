"""Reads COCO annotations: each box is an item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.manifest import read_box
from index_builder.indexing.sources.places import Places, named
from index_builder.storage import shown
from model_store.errors import DatasetError


@dataclass(frozen=True, slots=True)
class CocoAnnotations:
    """The boxes of a COCO file, in the order of the file.

    The item's id is the name of the image and the id of the annotation, joined by ``#``. The item's
    label is the name of the category. All boxes of an image form a group, which is never split
    between gallery and queries. Boxes with ``iscrowd`` are left out.

    Attributes
    ----------
    name, content : name of the file, and its parsed JSON.
    places : the folder that must contain all images.
    labelled : if True, categories are used as labels; if False, they are stored as metadata.
    """

    name: str
    content: object
    places: Places
    labelled: bool = True

    def entries(self, _scratch: Path, _left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each box.

        Raises
        ------
        DatasetError : the file is not in COCO's format.
        """
        content = self._require_format()
        try:
            files = {one["id"]: str(one["file_name"]) for one in content["images"]}
            categories = {one["id"]: str(one["name"]) for one in content.get("categories", [])}
            for number, found in enumerate(content["annotations"]):
                origin = f"{self.name}, annotation {number}"
                if not found.get("iscrowd"):
                    yield self._entry(found, origin, files, categories)
        except (KeyError, TypeError, AttributeError) as error:
            raise DatasetError(
                f"{self.name} is not in COCO's format: {type(error).__name__}: {error}. "
                "Wanted `images` with id and file_name, `annotations` with id, image_id and bbox."
            ) from error

    def _entry(
        self,
        found: Mapping[str, Any],
        origin: str,
        files: Mapping[Any, str],
        categories: Mapping[Any, str],
    ) -> Entry:
        file = files[found["image_id"]]
        name = named(file)
        box = read_box(found["bbox"], origin)
        place = replace(self.places.place(file, f"{origin}: {shown(file)!r}"), box=box)
        category = categories.get(found.get("category_id"))
        metadata = {"image": name, "bbox": list(box or ())}
        if category is not None and not self.labelled:
            metadata["label"] = category
        label = category if self.labelled else None
        return Entry(f"{name}#{found['id']}", place, label, metadata, origin, name)

    def _require_format(self) -> Mapping[str, Any]:
        content = self.content
        if not isinstance(content, dict) or not {"images", "annotations"} <= set(content):
            raise DatasetError(
                f"{self.name} is neither an IIIF manifest nor a COCO file: wanted an object with "
                "`images` and `annotations`."
            )
        return content
