"""Labelled images and what each part of them is for.

`load_splits` is the way in. Sources: `digits` (scikit-learn's, come with the library), `idx`
(Fashion-MNIST and MNIST), `folder` (one sub-folder for each label), `outliers` (other worlds),
`official` (published data sets, in the layout and the parts of their authors). Made up from them:
`views` (what a query could look like), `corruption` (spoilt copies).
"""

from index_builder.datasets.images import LabelledImages
from index_builder.datasets.splits import Splits, load_splits

__all__ = ["LabelledImages", "Splits", "load_splits"]
