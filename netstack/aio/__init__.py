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
- It is the door of `netstack.blocking`, awaited instead of waited at: trio runs in a thread of its own, records cross
  in bulk, no thread of asyncio's is held. Its rules about who calls, forks and closing hold here.
- Back-pressure is an await. A cancelled call is either done or was not begun, as under trio, and is over when the
  cancellation comes out of it.
- `emit` and iteration suspend only when they must wait: in a loop that never does, `await asyncio.sleep(0)` now and
  then.

Cost: that of `netstack.blocking`. In turns with trio's ends, each end in a process of its own, on two busy cores,
medians of 3 (a spread of two): records/s one by one with an asyncio writer 0.66, with an asyncio reader 0.87, with both
0.43; with both blocking 0.40.
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
