"""Simulates a whole cluster in one process, on a virtual clock; a seed decides the run, so a failure repeats."""
