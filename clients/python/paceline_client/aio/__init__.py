"""`AsyncProducer`, `AsyncConsumer` and `AsyncAdmin`: the clients for asyncio.

They wrap the synchronous clients, with the same settings, in coroutines. `send` passes records to the producer's sender
thread and returns an `asyncio.Future`; each client runs its blocking calls on a separate thread, so that they never
block the event loop and keep their order.
"""

from paceline_client.aio.admin import AsyncAdmin
from paceline_client.aio.consumer import AsyncConsumer
from paceline_client.aio.producer import AsyncProducer

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncProducer"]
