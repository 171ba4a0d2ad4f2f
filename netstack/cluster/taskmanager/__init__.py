"""The TaskManager: slots, tasks, network environments, code and blobs of jobs on one host."""
