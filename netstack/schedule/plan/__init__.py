"""What a job becomes on a cluster before anything runs, and how that is shown."""
