"""Checkpoints without an event loop: overtaken data, storage, alignment, restore."""
