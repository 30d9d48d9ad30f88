"""The transport below connections: what it writes, and when."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock, call

import pytest

from service.http.server import MAX_JOINED_BYTES, BoundedTransport

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def below() -> Mock:
    transport = Mock(asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.return_value = 0
    return transport


async def test_writes_of_one_turn_are_one(below: Mock) -> None:
    """A replica that is killed between head and body would leave half an answer to a proxy."""
    bounded = BoundedTransport(below, lambda: None)
    bounded.write(b"head")
    bounded.write(b"body")
    below.writelines.assert_not_called()
    await asyncio.sleep(0)
    bounded.write(b"more")
    await asyncio.sleep(0)
    assert below.writelines.mock_calls == [call([b"head", b"body"]), call([b"more"])]


async def test_much_is_sent_at_once(below: Mock) -> None:
    bounded = BoundedTransport(below, lambda: None)
    bounded.write(b"head")
    body = bytes(MAX_JOINED_BYTES)
    bounded.write(body)
    ((sent,),) = [one.args for one in below.writelines.mock_calls]
    assert sent[1] is body  # many connections may hold one answer
    await asyncio.sleep(0)
    below.writelines.assert_called_once()


@pytest.mark.parametrize(("end", "then"), [("finish", "close"), ("linger", "write_eof")])
async def test_all_is_sent_before_the_end(below: Mock, end: str, then: str) -> None:
    bounded = BoundedTransport(below, lambda: None)
    bounded.write(b"answer")
    getattr(bounded, end)()
    names = [name for name, *_ in below.mock_calls]
    assert names.index("writelines") < names.index(then)
    bounded.release()


async def test_nothing_is_sent_on_a_closed_connection(below: Mock) -> None:
    bounded = BoundedTransport(below, lambda: None)
    bounded.write(b"answer")
    below.is_closing.return_value = True
    await asyncio.sleep(0)
    below.writelines.assert_not_called()
