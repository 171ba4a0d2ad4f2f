"""`netstack-bench jobs`: the cost of starting jobs, of recovering a region, and of each record of a chain."""
