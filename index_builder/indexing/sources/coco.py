"""Reads COCO annotations: each box is an item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.manifest import require_box
from index_builder.indexing.sources.places import Places, named
from index_builder.storage import shown
from model_store.errors import DatasetError


@dataclass(frozen=True, slots=True)
class CocoAnnotations:
    """The boxes of a COCO file, in the order of the file.

    The item's id is the name of the image and the id of the annotation, joined by ``#``. The item's
    label is the name of the category. All boxes of an image form a group, which is never split
    between gallery and queries. Boxes with ``iscrowd`` and images without boxes are left out.

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

    def entries(self, _scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each box.

        Raises
        ------
        DatasetError : the file is not in COCO's format, an id is repeated, or an image or category
            is unknown.
        """
        content = self._require_format()
        try:
            files = self._by_id(content["images"], "images", "file_name")
            categories = self._by_id(content.get("categories", []), "categories", "name")
            without_box = dict(files)
            for number, found in enumerate(content["annotations"]):
                origin = f"{self.name}, annotation {number}"
                if found["image_id"] not in files:
                    raise DatasetError(
                        f"{origin} names the image {found['image_id']!r}, which `images` does not "
                        "have. Add it, or correct the annotation."
                    )
                without_box.pop(found["image_id"], None)
                if found.get("iscrowd"):
                    left_out.add(origin, Reason.crowd)
                else:
                    yield self._entry(found, origin, files, categories)
            for file in without_box.values():
                left_out.add(named(file), Reason.no_box)
        except (KeyError, TypeError, AttributeError) as error:
            raise DatasetError(
                f"{self.name} is not in COCO's format: {type(error).__name__}: {error}. "
                "Wanted `images` with id and file_name, `annotations` with id, image_id and bbox."
            ) from error

    def _by_id(self, records: Sequence[Mapping[str, Any]], part: str, field: str) -> dict[Any, str]:
        """Return a field of each record by the record's id; refuse a repeated id."""
        found: dict[Any, str] = {}
        for one in records:
            if one["id"] in found:
                raise DatasetError(
                    f"{self.name}: two records of `{part}` have the id {one['id']!r}: "
                    f"{found[one['id']]!r} and {one[field]!r}. Give each its own id."
                )
            found[one["id"]] = str(one[field])
        return found

    def _entry(
        self,
        found: Mapping[str, Any],
        origin: str,
        files: Mapping[Any, str],
        categories: Mapping[Any, str],
    ) -> Entry:
        file = files[found["image_id"]]
        name = named(file)
        box = require_box(found["bbox"], origin)
        place = replace(self.places.place(file, f"{origin}: {shown(file)!r}"), box=box)
        number = found.get("category_id")
        if categories and number is not None and number not in categories:
            raise DatasetError(
                f"{origin}: the category {number!r} is not in `categories`. Add it, or correct "
                "the annotation."
            )
        category = categories.get(number, "").strip() or None
        metadata = {"image": name, "bbox": list(box)}
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
