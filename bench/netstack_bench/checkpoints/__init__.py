"""`netstack-bench checkpoints`: the cost of aligned, unaligned and timed checkpoints under backpressure."""
