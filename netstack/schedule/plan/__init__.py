"""Plans: what a job becomes on a cluster before anything runs, as text, JSON and HTML."""
