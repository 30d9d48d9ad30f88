"""Storage: read files from buckets and web addresses, with limits on size and time.

::

    urls     parts of URLs; removal of user, password and query for display
    storage  `Storage` lists, copies and fetches files, with retries and limits
    bucket   S3, Google Cloud Storage and Azure, by obstore
    web      HTTP, by httpx2: which servers get credentials, which addresses data may use
    source   the interface of byte sources, and the errors of fetching

Credentials come from the environment variables that the clients of the cloud providers use.
Credentials are sent only to origins that the operator has named. No message, report or bundle
contains a credential.
"""

from index_builder.storage.source import NotFetched
from index_builder.storage.storage import Patience, Storage
from index_builder.storage.urls import is_url, shown
from index_builder.storage.web import Trust

__all__ = ["NotFetched", "Patience", "Storage", "Trust", "is_url", "shown"]
