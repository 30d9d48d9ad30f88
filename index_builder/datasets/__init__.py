"""Labelled images and what each part of them is for.

`load_splits` (`splits`) is the way in. Sources: `digits` (they come with scikit-learn), `idx`
(Fashion-MNIST and MNIST), `folder` (one sub-folder for each label), `outliers` (other worlds).
`image_files` tells images from the other files of a source, `unicode_text` refuses what is no text.
`groups` and `near_duplicates` keep what belongs together on one side. Made up from them: `views`
(what a query could look like), `corruption` (corrupted copies). `images` is what all of them give.
"""

from index_builder.datasets.images import LabelledImages
from index_builder.datasets.splits import SplitChoices, Splits, load_splits

__all__ = ["LabelledImages", "SplitChoices", "Splits", "load_splits"]
