"""Which buffer timeout to set: the answer to a goal, of runs that are made for it or were made before."""
