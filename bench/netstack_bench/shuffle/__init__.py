"""A sort-style all-to-all between two stages of a batch job: pipelined, hybrid, blocking."""
