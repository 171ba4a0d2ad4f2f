"""A cluster of processes, and peers that attack it."""
