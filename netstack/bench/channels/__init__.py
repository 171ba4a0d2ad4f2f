"""`netstack-bench channels`: what idle logical channels cost."""
