"""Pooled memory: segments, buffers that are read while they are written, and the pools that share them out."""
