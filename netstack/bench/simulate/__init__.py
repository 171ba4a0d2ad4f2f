"""A whole cluster in one process, on a clock that jumps, driven by one seed: what goes wrong comes again."""
