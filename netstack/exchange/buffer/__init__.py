"""Pooled memory: segments, reference-counted buffers that can be read while they are written, and their pools."""
