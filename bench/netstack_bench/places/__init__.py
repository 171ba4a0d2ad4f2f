"""Where a measurement runs: two processes of this machine, hosts, or Spark. Begin with `placements`."""
