"""Arrays of numbers, disjoint sets, connected components: what knows nothing of jobs."""
