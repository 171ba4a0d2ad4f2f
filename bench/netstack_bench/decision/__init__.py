"""Which buffer timeout to set: the experiment that measures until this is known, and the answer of its runs."""
