"""`netstack-bench goals`: rates and latencies against peers, both builds, one command."""
