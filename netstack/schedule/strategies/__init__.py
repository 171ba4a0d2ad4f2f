"""Scheduling strategies: when subtasks are scheduled."""
