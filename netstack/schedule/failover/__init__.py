"""What restarts after a failure, when, and which partitions are kept or released."""
