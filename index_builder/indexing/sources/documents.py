"""Reads JSON documents that list images: COCO annotations and IIIF manifests.

In COCO annotations, each box is an item. In manifests of the IIIF Presentation API, versions 2 and
3, each canvas is an item: https://iiif.io/api/presentation/3.0/,
https://iiif.io/api/presentation/2.1/, https://iiif.io/api/image/3.0/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from index_builder.datasets.image_files import LeftOut, Reason
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.manifest import require_box, without_label
from index_builder.indexing.sources.places import Places, named
from index_builder.progress import note
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
        with _reading_coco(self.name):
            files = self._by_id(content["images"], "images", "file_name")
            categories = self._by_id(content.get("categories", []), "categories", "name")
            if self.labelled and not categories:
                note(f"{self.name} has no `categories`, so its boxes are indexed without labels.")
            without_box = dict(files)
            for number, found in enumerate(content["annotations"]):
                origin = f"{self.name}, annotation {number}"
                with _reading_coco(origin):
                    if found["image_id"] not in files:
                        raise DatasetError(
                            f"{origin} names the image {found['image_id']!r}, which `images` does "
                            "not have. Add it, or correct the annotation."
                        )
                    without_box.pop(found["image_id"], None)
                    if found.get("iscrowd"):
                        left_out.add(origin, Reason.crowd)
                    else:
                        yield self._entry(found, origin, files, categories)
            for file in without_box.values():
                left_out.add(named(file), Reason.no_box)

    def _by_id(self, records: Sequence[Mapping[str, Any]], part: str, field: str) -> dict[Any, str]:
        """Return a field of each record by the record's id; empty for null.

        A repeated id is refused.
        """
        found: dict[Any, str] = {}
        for number, one in enumerate(records):
            with _reading_coco(f"{self.name}, `{part}` {number}"):
                if one["id"] in found:
                    raise DatasetError(
                        f"{self.name}: two records of `{part}` have the id {one['id']!r}: "
                        f"{found[one['id']]!r} and {one[field]!r}. Give each its own id."
                    )
                found[one["id"]] = "" if one[field] is None else str(one[field])
        return found

    def _entry(
        self,
        found: Mapping[str, Any],
        origin: str,
        files: Mapping[Any, str],
        categories: Mapping[Any, str],
    ) -> Entry:
        file = files[found["image_id"]]
        if not file:
            raise DatasetError(
                f"{origin} names the image {found['image_id']!r}, whose file_name is empty. "
                "Name its file."
            )
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


@contextmanager
def _reading_coco(origin: str) -> Iterator[None]:
    """Raise `DatasetError` for a part of a COCO file that has another format."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{origin} is not in COCO's format: {type(error).__name__}: {error}. "
            "Wanted `images` with id and file_name, `annotations` with id, image_id and bbox."
        ) from error


LONGEST_SIDE = 1024
"""Longest side in pixels of an image from an image service. This is more than encoders need, and
much less than a full scan."""

Json = Mapping[str, Any]

_MOTIVATIONS = frozenset({"painting", "sc:painting"})


def is_iiif(content: object) -> bool:
    """Return whether the content follows the Presentation API."""
    if not isinstance(content, dict):
        return False
    contexts = _list(content.get("@context"))
    return any("iiif.io/api/presentation" in str(one) for one in contexts)


@dataclass(frozen=True, slots=True)
class IiifManifest:
    """The canvases of a manifest, in the order of the manifest, each with its first image.

    A canvas without an image that Vouch reads is left out. Further images of a canvas are left out,
    and so are further sequences.

    A canvas is a page, a side or a detail of an object. An item has the id and the label of its
    canvas. It has the metadata of the manifest and of the canvas. The metadata field ``manifest``
    is the manifest's label. If an image has an Image API service of level 1 or 2, it is downloaded
    with a longest side of at most `LONGEST_SIDE` pixels. Other images are downloaded unchanged.

    Attributes
    ----------
    name, content : name of the file, and its parsed JSON.
    labelled : if True, labels define the classes; if False, labels are stored as metadata.
    """

    name: str
    content: Json
    labelled: bool = True

    def entries(self, _scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each canvas with an image.

        Raises
        ------
        DatasetError : the file is not a manifest, or a part of it is invalid.
        """
        kind = str(self.content.get("type") or self.content.get("@type"))
        if kind.rpartition(":")[2] != "Manifest":
            raise DatasetError(
                f"{self.name} is an IIIF {kind}; wanted a Manifest. "
                "Index each of its manifests separately."
            )
        of_manifest = _metadata(self.content)
        if title := _text(self.content.get("label")):
            of_manifest["manifest"] = title
        origin = self.name
        try:
            for canvas in _further_canvases(self.content):
                left_out.add(shown(str(_id(canvas))), Reason.further_sequence)
            for number, canvas in enumerate(_canvases(self.content)):
                origin = f"{self.name}, canvas {number}"
                images = list(_images(canvas))
                if len(images) != 1:
                    reason = Reason.further_image if images else Reason.no_painting
                    left_out.add(shown(str(_id(canvas) or f"canvas {number}")), reason)
                if not images:
                    continue
                entry = _entry(canvas, images[0], of_manifest, origin)
                yield entry if self.labelled else without_label(entry)
        except _Malformed as error:
            raise DatasetError(
                f"{self.name} does not follow the IIIF Presentation API: {error}."
            ) from error
        except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as error:
            raise DatasetError(
                f"{origin} does not follow the IIIF Presentation API "
                f"({type(error).__name__}: {error})."
            ) from error


def _entry(canvas: Json, image: Json, of_manifest: Json, origin: str) -> Entry:
    url = image_url(image, canvas)
    if not url.lower().startswith(("http://", "https://")):
        raise DatasetError(f"{origin}: the image is at {shown(url)!r}; wanted http or https.")
    return Entry(
        shown(str(_id(canvas) or url)),
        Place(url, None, 0, 0),
        _text(canvas.get("label")),
        {**of_manifest, **_metadata(canvas)},
        origin,
    )


def _canvases(manifest: Json) -> Iterator[Json]:
    """Yield the canvases; in version 2, only canvases of the first sequence."""
    if "items" not in manifest and not _list(manifest.get("sequences")):
        raise _Malformed("it has neither `items` nor `sequences`")
    if "items" in manifest:
        if manifest["items"] is None:
            raise _Malformed("`items` is null")
        yield from _objects(manifest, "items")
    else:
        for sequence in islice(_objects(manifest, "sequences"), 1):
            yield from _objects(sequence, "canvases")


def _further_canvases(manifest: Json) -> Iterator[Json]:
    """Yield the canvases of version 2 that are in no first sequence."""
    if "items" in manifest:
        return
    known = {_id(canvas) for canvas in _canvases(manifest)}
    for sequence in islice(_objects(manifest, "sequences"), 1, None):
        for canvas in _objects(sequence, "canvases"):
            if _id(canvas) not in known:
                yield canvas


def _images(canvas: Json) -> Iterator[Json]:
    """Yield the images that annotations paint on a canvas, in order; of a choice, the first."""
    for page in _objects(canvas, "items"):
        for annotation in _objects(page, "items"):
            if not _MOTIVATIONS.isdisjoint(_list(annotation.get("motivation"))):
                for body in _objects(annotation, "body"):
                    yield from islice(_bodies(body), 1)
    for annotation in _objects(canvas, "images"):
        for body in _objects(annotation, "resource"):
            yield from islice(_bodies(body), 1)


def _bodies(body: object) -> Iterator[Json]:
    for one in _list(body):
        kind = str(one.get("type") or one.get("@type") or "Image")
        if one.get("selector"):
            continue  # a part of an image: the whole image is another picture
        if kind == "Choice":
            yield from _bodies(one.get("items"))
        elif kind == "oa:Choice":
            yield from _bodies(one.get("default"))
        elif kind in {"SpecificResource", "oa:SpecificResource"}:
            yield from _bodies(one.get("source") or one.get("full"))
        elif kind in {"Image", "dctypes:Image"}:
            yield one


def image_url(image: Json, canvas: Json) -> str:
    """Return the URL to download an image from.

    A URL with only a width or only a height requests a smaller image from a service of level 1 or
    2. Both levels, and both versions of the Image API, accept such a URL. An image is never
    enlarged.
    """
    for service in _list(image.get("service")):
        version, level = _version_and_level(service)
        base = _id(service)
        if not version or not level or not base:
            continue
        width, height = (image.get(side) or service.get(side) for side in ("width", "height"))
        if not width or not height:  # the canvas has the same aspect ratio
            width, height = canvas["width"], canvas["height"]
        if max(width, height) <= LONGEST_SIDE:
            size = "full" if version == 2 else "max"
        else:
            size = f"{LONGEST_SIDE}," if width >= height else f",{LONGEST_SIDE}"
        return f"{str(base).rstrip('/')}/full/{size}/0/default.jpg"
    return str(_id(image) or "")


def _version_and_level(service: Json) -> tuple[int, int]:
    """Return the version and the level of an Image API service.

    For any other service, the version is 0. A version or level that is missing is 0. A
    service of level 0 has only images of listed sizes.
    """
    kind = str(service.get("type") or service.get("@type") or "")
    context = " ".join(map(str, _list(service.get("@context"))))
    profiles = " ".join(str(one) for one in _list(service.get("profile")))
    named = re.search(r"ImageService(\d)", kind) or re.search(
        r"api/image/(\d)", f"{context} {profiles}"
    )
    level = re.search(r"level(\d)", profiles)
    return int(named[1]) if named else 0, int(level[1]) if level else 0


def _metadata(resource: Json) -> dict[str, Any]:
    """Return the metadata of a manifest or canvas.

    If a name occurs several times, its values form a list.
    """
    found: dict[str, Any] = {}
    for pair in _list(resource.get("metadata")):
        name, value = _text(pair.get("label")), _text(pair.get("value"))
        if name is None or value is None:
            continue
        if name in found:
            found[name] = [*_list(found[name]), value]
        else:
            found[name] = value
    for name in ("rights", "license"):
        if (value := _text(resource.get(name))) is not None:
            found.setdefault("rights", value)
    return found


def _text(value: object) -> str | None:
    """Return the text that has no language, else the English text, else the first text.

    In version 3, the value is ``{language: [text, …]}``. In version 2, the value is a text,
    ``{@language, @value}``, or a list of these.
    """
    if isinstance(value, dict) and "@value" in value:
        return _text(value["@value"])
    if isinstance(value, dict):
        languages = [one for one in ("none", "@none", "en") if one in value] or list(value)
        return _text(value[languages[0]]) if languages else None
    if isinstance(value, list):
        if any(isinstance(one, dict) and "@language" in one for one in value):
            english = [one for one in value if str(one.get("@language")).startswith("en")]
            return _text((english or value)[0])
        return "; ".join(filter(None, map(_text, value))) or None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value).strip() or None
    return None


class _Malformed(Exception):
    """A part of a manifest is missing, or is not an object."""


def _objects(resource: Json, name: str) -> Iterator[Json]:
    """Yield the objects in a field.

    Raises
    ------
    _Malformed
    """
    for number, one in enumerate(_list(resource.get(name))):
        if not isinstance(one, dict):
            place = f"{name}[{number}]" + (f" of {shown(str(_id(resource)))}" * bool(_id(resource)))
            raise _Malformed(f"{place} is {json.dumps(one)[:60]}; wanted an object")
        yield one


def _id(resource: Json) -> object:
    return resource.get("id") or resource.get("@id")


def _list(value: object) -> Sequence[Any]:
    """Return ``value`` as a list; None becomes an empty list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
