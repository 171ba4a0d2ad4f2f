"""A stream worker that keeps the numbers it receives: `python sink_worker.py FOLDER ADDRESS ROWS`.

Its state is the next epoch and all numbers so far, in a file that is replaced. Killed and started again, it goes on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from netstack.spark import Subscriber


def main(folder: Path, address: str, rows: int) -> None:
    state = folder / "state.json"
    resume, ids = json.loads(state.read_text()) if state.exists() else (0, [])
    with Subscriber(address, "numbers", folder / "received", resume=resume, max_epochs=4) as subscriber:
        while len(ids) < rows:
            epoch = subscriber.next()
            for batch in epoch:
                ids += batch.column(0).to_pylist()
            aside = folder / "state.json.part"
            aside.write_text(json.dumps([epoch.number + 1, ids]))
            aside.rename(state)
            subscriber.forget(epoch)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
