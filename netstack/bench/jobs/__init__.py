"""What the runtime of jobs costs: until all tasks run, until a region runs again, and for each record of a chain."""
