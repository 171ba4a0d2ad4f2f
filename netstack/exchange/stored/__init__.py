"""Kept partitions: written to files once, and read any number of times until they are released."""
