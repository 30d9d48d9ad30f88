"""Copies bundles to and from other places: folders, buckets and the Hugging Face Hub.

::

    places      a local disk, a bucket, a repository of the Hub; parses their addresses
    pull        copies a bundle into a directory of bundles
"""
