"""Labelled images, and their division into training, gallery, calibration and evaluation.

`load_splits` (`splits`) loads and divides the data of a build. Sources: `digits` (part of
scikit-learn), `idx` (Fashion-MNIST and MNIST), `folder` (one sub-folder for each label), `outliers`
(far-OOD images). `image_files` separates the images of a source from its other files. `groups` and
`near_duplicates` keep images of one object in one part. `views` makes augmented views, and
`corruption` makes corrupted images. `images` defines `LabelledImages`, the type of all collections
of images.
"""

from index_builder.datasets.images import LabelledImages
from index_builder.datasets.splits import SplitChoices, Splits, load_splits

__all__ = ["LabelledImages", "SplitChoices", "Splits", "load_splits"]
