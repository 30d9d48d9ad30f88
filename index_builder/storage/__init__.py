"""Storage: bytes that lie in a bucket or behind a web address, fetched within bounds.

::

    urls     what a URL is, and what of it may be shown: no user, no password, no query
    storage  the way in: files are listed, copied and fetched; retries, and limits of size and time
    copies   files that are wanted whole, copied to this machine
    library  the options and errors of obstore
    bucket   S3, Google Cloud Storage and Azure, by obstore
    web      HTTP, by httpx2
    trust    where credentials go, and which addresses data may name
    guarded  connections whose addresses are checked
    probe    whether a web server answers
    source   a byte source as `storage` wants it, and the errors of fetching

Credentials come from the environment, as the clients of the clouds read them. They go to what the
operator has named. None is in a message, a report or a bundle.
"""

from index_builder.storage.source import NotFetched
from index_builder.storage.storage import Patience, Storage
from index_builder.storage.trust import Trust
from index_builder.storage.urls import is_url, shown

__all__ = ["NotFetched", "Patience", "Storage", "Trust", "is_url", "shown"]
