"""Partitions that are kept: written to files once, read by anybody, any number of times, until they are released."""
