"""`netstack-bench scheduler`: the cost of scheduling a wide job, without a cluster."""
