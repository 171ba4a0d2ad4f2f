"""`netstack-bench channels`: the cost of idle logical channels."""
