"""A job as subtasks, partitions, groups and pipelined regions, all of them in arrays."""
