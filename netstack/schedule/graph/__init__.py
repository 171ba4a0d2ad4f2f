"""How a job is written, and what its operators become: StreamGraph, chains, JobGraph."""
