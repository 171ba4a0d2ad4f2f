"""netstack for asyncio programs: the same data path and calls; trio runs in a thread of its own.

Takes: the arguments of `netstack`. Gives: `open_network`, `RecordWriter`, `RecordReader`, `ArrayReader`, whose calls
are awaited under asyncio and raise the errors of their counterparts in `netstack`.

```python
import asyncio

from netstack import ChannelDescriptor, aio


async def produce(manager):
    partition = manager.create_partition("words", subpartitions=1)
    writer = aio.RecordWriter(partition, format="str")
    for word in "no record lost and none repeated".split():
        await writer.emit(word)
    await writer.finish()


async def main():
    async with aio.open_network("tcp://127.0.0.1:0") as producer:
        async with aio.open_network("tcp://127.0.0.1:0") as consumer, asyncio.TaskGroup() as tasks:
            tasks.create_task(produce(producer))
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, "words")])
            async for word in aio.RecordReader(gate, format="str"):
                print(word)


asyncio.run(main())
```

Rules:
- asyncio's thread itself reads and writes, as a visitor of trio's loop. The rules of `netstack.blocking` about threads,
  forks and closing apply.
- Back-pressure suspends the caller as soon as the configured buffers are full. A cancelled call either has no effect,
  or the other thread completes what it began to write.
- `emit` and iteration suspend only when they must wait: a loop that never waits should call `await asyncio.sleep(0)`
  regularly.
"""

from typing import Any

from .base.renamed import warn_renamed
from .network.aio.environment import NetworkEnvironment, open_network
from .network.aio.reader import ArrayReader, RecordReader
from .network.aio.writer import RecordWriter

__all__ = ["ArrayReader", "NetworkEnvironment", "RecordReader", "RecordWriter", "open_network"]


def __getattr__(name: str) -> Any:
    if name == "open_task_manager":
        warn_renamed("open_task_manager", "open_network")
        return open_network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
