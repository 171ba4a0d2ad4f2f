"""`netstack-bench recover`: a job whose processes are killed again and again counts every record once."""
