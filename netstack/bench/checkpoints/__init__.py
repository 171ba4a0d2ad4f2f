"""`netstack-bench checkpoints`: what aligned, unaligned and timed checkpoints cost under backpressure."""
