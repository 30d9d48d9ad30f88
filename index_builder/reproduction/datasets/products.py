"""Product data sets: Stanford Online Products and In-Shop Clothes."""

from __future__ import annotations

from index_builder.datasets.images import LabelledImages, from_files
from index_builder.reproduction.datasets.official import Official, Origin, Publication
from index_builder.reproduction.datasets.tables import rows_of
from model_store.errors import DatasetError

SOP = Publication(
    "Stanford Online Products",
    "Stanford_Online_Products",
    "Ebay_train.txt, Ebay_test.txt and the twelve folders *_final that they name",
    "https://cvgl.stanford.edu/projects/lifted_struct/",
    {"train": (59_551, 11_318), "test": (60_502, 11_316)},
)
IN_SHOP = Publication(
    "In-Shop Clothes",
    "In-shop",
    "Eval/list_eval_partition.txt, and img/ (Img/img.zip, unpacked) beside Eval/ or in Img/",
    "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    {"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},
)


def stanford_online_products(origin: Origin) -> Official:
    """Load SOP (Oh Song et al. 2016): parts ``train`` and ``test``, with different products.

    Raises
    ------
    DatasetError
    """
    parts: dict[str, LabelledImages] = {}
    root = origin.root / SOP.folder
    for part in ("train", "test"):
        # columns: image_id class_id super_class_id path
        rows = rows_of(SOP.require(origin, f"Ebay_{part}.txt"), 4, skip=1)
        products = {row[3]: row[1] for row in rows}
        names, labels = SOP.existing(origin, ".", list(products), products.__getitem__)
        parts[part] = from_files(root, names, labels)
    return SOP.checked(origin, parts)


def in_shop(origin: Origin) -> Official:
    """Load In-Shop (Liu et al. 2016): parts ``train``, ``query`` and ``gallery``.

    No item of ``train`` is in ``query`` or ``gallery``.

    Raises
    ------
    DatasetError
    """
    partition = IN_SHOP.require(origin, "Eval/list_eval_partition.txt")
    folder = "Img" if (origin.root / IN_SHOP.folder / "Img" / "img").is_dir() else "."
    rows = rows_of(partition, 3, skip=2)  # the skipped lines are a count and the column names
    item_of = {name: item for name, item, _ in rows}
    members: dict[str, list[str]] = {"train": [], "query": [], "gallery": []}
    for name, _, part in rows:
        if part not in members:
            raise DatasetError(
                f"{partition} has the unknown part {part!r}; the known parts are train, query and "
                "gallery. Fetch the file again."
            )
        members[part].append(name)
    parts: dict[str, LabelledImages] = {}
    for part, wanted in members.items():
        names, labels = IN_SHOP.existing(origin, folder, wanted, item_of.__getitem__)
        parts[part] = from_files(origin.root / IN_SHOP.folder / folder, names, labels)
    return IN_SHOP.checked(origin, parts)
