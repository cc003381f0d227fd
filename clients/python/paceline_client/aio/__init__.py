"""`AsyncProducer`, `AsyncConsumer` and `AsyncAdmin`: the clients for asyncio.

They are the same clients with the same settings, behind coroutines. `send` hands records to the producer's own sender
and gives an `asyncio.Future`; calls that wait run on one thread that each client has for itself, so the event loop is
never blocked and calls of one client keep their order.
"""

from paceline_client.aio.admin import AsyncAdmin
from paceline_client.aio.consumer import AsyncConsumer
from paceline_client.aio.producer import AsyncProducer

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncProducer"]
