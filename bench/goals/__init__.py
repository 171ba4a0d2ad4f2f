"""`netstack-bench goals`: README's table of rates against peers, both builds, one command."""
