"""`netstack-bench isolate`: what a subtask that stalls does to its sibling on the same connection."""
