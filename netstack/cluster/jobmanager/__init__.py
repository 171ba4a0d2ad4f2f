"""The JobManager: accepts jobs, tracks TaskManagers, runs one scheduler for each job."""
