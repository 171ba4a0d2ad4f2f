"""How many subtasks a batch job's vertices get, and which data each of them reads."""
