"""The worker processes of a service, and resources shared with child processes.

::

    workers          worker processes; each is a complete service
    shared_pixels    pixels in memory that two processes share
"""
