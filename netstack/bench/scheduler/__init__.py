"""`netstack-bench scheduler`: what scheduling a wide job costs, without any cluster."""
