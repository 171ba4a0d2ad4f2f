"""A stream worker that stores the numbers it receives: `python sink_worker.py FOLDER ADDRESS`.

Its state is the next epoch and all numbers so far, in a file that is replaced. After a kill it continues from there. It
ends before the epoch whose number is in the file `last`, once that file exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from netstack.spark import Subscriber


def main(folder: Path, address: str) -> None:
    state, last = folder / "state.json", folder / "last"
    resume, ids = json.loads(state.read_text()) if state.exists() else (0, [])
    with Subscriber(address, "numbers", folder / "received", resume=resume, max_epochs=4) as subscriber:
        while not (last.exists() and resume >= int(last.read_text())):
            epoch = subscriber.next()
            for batch in epoch:
                ids += batch.column(0).to_pylist()
            aside = folder / "state.json.part"
            resume = epoch.number + 1
            aside.write_text(json.dumps([resume, ids]))
            aside.rename(state)
            subscriber.forget(epoch)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
