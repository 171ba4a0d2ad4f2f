"""Jobs: a master, its workers, and the tasks they run, with checkpoints and recovery."""
