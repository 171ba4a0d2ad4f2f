"""Writing a job, and compiling it: StreamGraph, chains, JobGraph."""
