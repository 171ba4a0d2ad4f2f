"""Adaptive batch: the parallelism of vertices, and which data each subtask reads."""
