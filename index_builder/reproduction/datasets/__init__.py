"""Published data sets as their authors lay them out on disk and divide them.

Each reader takes an `Origin`, the folder that the user's data sets lie in, and gives an `Official`:
parts by name, counted. What is missing, or fewer than published, is a `DatasetError` that says what
was wanted and where to get it; `Origin.allow_partial` takes less, and remembers what is missing.
"""

from index_builder.reproduction.datasets.official import Official, Origin

__all__ = ["Official", "Origin"]
