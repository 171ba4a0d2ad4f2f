"""netstack for programs that block: the same data path, in a thread of its own, with plain method calls.

Takes: what `netstack` takes. Gives: `open_network`, `RecordWriter`, `RecordReader`, `ArrayReader`, whose calls
block, take `timeout_s`, and raise what those of `netstack` raise.

```python
with blocking.open_network("tcp://127.0.0.1:0") as manager:
    partition = manager.create_partition("words", subpartitions=1)
    writer = blocking.RecordWriter(partition, format="str")
    writer.emit("word")
    writer.finish()
```

Rules:
- Back-pressure is a call that blocks. A call that times out did nothing, and can be made again.
- Threads: a NetworkEnvironment serves any number of them; a writer or reader one at a time. Its `close()` from any
  thread wakes every call that waits with LocalProtocolError.
- Ctrl-C in the main thread interrupts any call; nothing is torn.
- The program may run asyncio or trio in its other threads; inside one of these, call from a worker thread.
- Processes that are forked cannot use what their parent opened, and keep its connections open: spawn them.
- A thread that computes without pause holds the interpreter for up to `sys.getswitchinterval()` (5 ms) at a time, and
  with it the TaskManager's thread.

The calling thread itself encodes and decodes, fills buffers and sends. Readers read the sockets as well where they can
(`direct=`; `statistics()` and `repr` tell): plain TCP and unix sockets from which no other gate reads. Elsewhere the
TaskManager's thread reads, which costs a record alone some 100 us more; see `netstack/DESIGN.md`, "A visitor of the
loop".
"""

from typing import Any

from trio import WouldBlock

from ..renamed import warn_renamed
from .network_environment import InputGate, NetworkEnvironment, ResultPartition, open_network
from .record_reader import ArrayReader, ReaderStatistics, RecordReader
from .record_writer import RecordWriter
from .writing import WriterStatistics

__all__ = [
    "ArrayReader",
    "InputGate",
    "NetworkEnvironment",
    "ReaderStatistics",
    "RecordReader",
    "RecordWriter",
    "ResultPartition",
    "WouldBlock",
    "WriterStatistics",
    "open_network",
]


def __getattr__(name: str) -> Any:
    if name == "open_task_manager":
        warn_renamed("open_task_manager", "open_network")
        return open_network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
