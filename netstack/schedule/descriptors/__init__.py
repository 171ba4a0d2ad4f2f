"""What a TaskManager is told to run: task deployment descriptors, and how large parts of them are shared."""
