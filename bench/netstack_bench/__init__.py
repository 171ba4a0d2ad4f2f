"""The benchmark: measures what a user of netstack can call, between real processes, and reports it."""
