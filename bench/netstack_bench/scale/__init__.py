"""`netstack-bench scale`: time, CPU and memory of more channels, connections and TaskManagers."""
