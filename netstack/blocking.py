"""netstack for programs without an event loop: the same data path, with blocking method calls.

Takes: the arguments of `netstack`. Gives: `open_network`, `RecordWriter`, `RecordReader`, `ArrayReader`, whose calls
block, accept `timeout_s`, and raise the errors of their counterparts in `netstack`. trio runs in a thread of its own.

```python
with blocking.open_network("tcp://127.0.0.1:0") as manager:
    partition = manager.create_partition("words", subpartitions=1)
    writer = blocking.RecordWriter(partition, format="str")
    writer.emit("word")
    writer.finish()
```

Rules:
- Back-pressure blocks the call. A call that times out has no effect and can be repeated.
- Threads: any number of threads may use a NetworkEnvironment; a writer or reader serves one thread at a time.
  `close()`, from any thread, makes all waiting calls raise LocalProtocolError.
- Ctrl-C in the main thread interrupts any call and leaves the stream intact.
- The program may run asyncio or trio in its other threads; inside one of these, call from a worker thread.
- A forked process cannot use the objects of its parent, and keeps the parent's connections open: use spawn.
- A thread that computes without pause blocks the TaskManager's thread for up to `sys.getswitchinterval()` (5 ms) at a
  time.

The calling thread encodes and decodes records, fills buffers and sends them. A reader also reads the sockets if they
are plain TCP or unix sockets that no other gate reads (`direct=`; `statistics()` and `repr` report it). Otherwise the
TaskManager's thread reads them, which adds about 100 us to a single record.
"""

from typing import Any

from trio import WouldBlock

from .base.renamed import warn_renamed
from .network.blocking.environment import InputGate, NetworkEnvironment, ResultPartition, open_network
from .network.blocking.reader import ArrayReader, ReaderStatistics, RecordReader
from .network.blocking.writer import RecordWriter
from .network.blocking.writing import WriterStatistics

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
