"""The word count in Bytewax: the dataflow that its processes run.

Each process writes the file `counts` and a file with its start time to the folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from netstack.examples.word_count import LINES_AT_ONCE, split


def flow(folder: str) -> Any:
    """Builds the dataflow; its processes share the parts of the text, and the words by their keys."""
    import bytewax.operators as op
    from bytewax.connectors.files import DirSource, FileSink
    from bytewax.dataflow import Dataflow

    place = Path(folder)
    (place / f"began-{os.getpid()}").write_text(repr(time.monotonic()))
    dataflow = Dataflow("words")
    lines = op.input("lines", dataflow, DirSource(place, glob_pat="part-*", batch_size=LINES_AT_ONCE))
    counts = op.count_final("count", op.flat_map("split", lines, split), lambda word: word)
    op.output(
        "counts", op.map("text", counts, lambda each: (each[0], f"{each[0]} {each[1]}")), FileSink(place / "counts")
    )
    return dataflow
