"""netstack for programs on asyncio: the same data path, in a thread of its own, with the calls of `netstack`.

Takes: what `netstack` takes. Gives: `open_network`, `RecordWriter`, `RecordReader`, `ArrayReader`, whose calls are
awaited under asyncio, and raise what those of `netstack` raise.

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
- It is `netstack.blocking`, awaited instead of waited at: trio runs in a thread of its own, and asyncio's thread reads
  and writes as a visitor of that loop. Its rules about who calls, forks and closing hold here.
- Back-pressure is an await, as soon as the configured buffers are full. A cancelled call is either done or was not
  begun: what it had begun to write, the other thread brings to its end.
- `emit` and iteration suspend only when they must wait: in a loop that never does, `await asyncio.sleep(0)` now and
  then.
"""

from typing import Any

from ..renamed import warn_renamed
from .environment import NetworkEnvironment, open_network
from .record_reader import ArrayReader, RecordReader
from .record_writer import RecordWriter

__all__ = ["ArrayReader", "NetworkEnvironment", "RecordReader", "RecordWriter", "open_network"]


def __getattr__(name: str) -> Any:
    if name == "open_task_manager":
        warn_renamed("open_task_manager", "open_network")
        return open_network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
