"""The benchmark over any number of hosts: sources and sinks all-to-all, deployed on TaskManagers."""
