"""The execution graph of a job in arrays: subtasks, partitions, groups and pipelined regions."""
