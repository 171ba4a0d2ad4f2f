"""Slots: which subtasks share one, which request gets which, and where a job would run."""
