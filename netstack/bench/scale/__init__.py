"""`netstack-bench scale`: what more channels, more connections and more TaskManagers cost, in time, CPU and memory."""
