"""Copies bundles to and from other places: folders, buckets and the Hugging Face Hub.

::

    address     parses the address of a place; a place on this machine
    bucket      S3, Google Cloud Storage, Azure
    hub         a repository of the Hugging Face Hub
    pull        copies a bundle into a directory of bundles
"""
