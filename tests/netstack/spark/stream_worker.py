"""A stream worker that counts: `python stream_worker.py FOLDER ADDRESS ROWS ROWS_OF_AN_EPOCH`.

Its state is the next number and the next epoch, in a file that is replaced. Killed and started again, it goes on. It
ends when all its rows are processed at the other end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

from netstack import blocking
from netstack.spark.publisher import Publisher


def main(folder: Path, address: str, rows: int, rows_of_an_epoch: int) -> None:
    state = folder / "state.json"
    start, epoch = json.loads(state.read_text()) if state.exists() else (0, 0)
    with blocking.open_network(address) as network:
        publisher = Publisher(network, "numbers", folder / "epochs", subpartitions=2, resume=epoch, max_epochs=3)
        publisher.offer()
        while start < rows:
            end = min(rows, start + rows_of_an_epoch)
            for subpartition in range(2):
                ids = pa.array(range(start + subpartition, end, 2), pa.int64())
                publisher.write(pa.RecordBatch.from_pydict({"id": ids}), subpartition)
            epoch = publisher.cut(is_last=end == rows)
            aside = folder / "state.json.part"
            aside.write_text(json.dumps([end, epoch]))
            aside.rename(state)
            publisher.offer()
            start = end
        publisher.wait_acknowledged()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
