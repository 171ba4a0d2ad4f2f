"""Checkpoints without an event loop: what was overtaken, what is stored, who waits for whom, what is restored."""
