"""Bundles brought to other places, and from them.

::

    address     the place that a text names
    place       the interface of a place
    folder      a bundle, or a directory of bundles, on this machine
    bucket      S3, Google Cloud Storage, Azure
    hub         a repository of the Hugging Face Hub
    model_card  a bundle and its evaluation in words, for the Hub
    pull        a bundle elsewhere → a directory of bundles
"""
