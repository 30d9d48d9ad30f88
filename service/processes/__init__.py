"""The worker processes of a service, and resources shared with child processes.

::

    workers          several processes that answer, each a whole service
    shared_pixels    images in memory that both sides map
    open_files       how many may be open
"""
