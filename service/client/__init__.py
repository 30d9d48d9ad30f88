"""The client of the service, for Python.

::

    client      `VouchClient`: a method for each path
    contract    the options that it takes, and the problems that it raises
"""

from service.client.client import MAX_ATTEMPTS, MAX_WAIT_S, Image, VouchClient
from service.client.contract import DecisionOptions, ListOptions, SearchOptions, VouchProblem

__all__ = [
    "MAX_ATTEMPTS",
    "MAX_WAIT_S",
    "DecisionOptions",
    "Image",
    "ListOptions",
    "SearchOptions",
    "VouchClient",
    "VouchProblem",
]
