"""What runs jobs: JobManager, TaskManagers, tasks, and the protocol between them."""
