"""What a TaskManager runs: task deployment descriptors, and how large parts of them are shared."""
