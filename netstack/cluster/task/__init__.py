"""One subtask of a job: its chain of operators, its gates, its partitions, its part in checkpoints."""
