"""A JobManager played without processes, and TaskManagers that follow a script."""
