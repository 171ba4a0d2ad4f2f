"""`netstack-bench isolate`: the effect of a stalled subtask on its sibling on the same connection."""
