"""Failover: which subtasks restart after a failure, when, and which partitions are kept or released."""
