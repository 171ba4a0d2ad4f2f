"""Clocks and waits: alarms, deadlines, wake-ups."""
