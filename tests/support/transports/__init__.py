"""A line that is impaired, and a process at its other end."""
