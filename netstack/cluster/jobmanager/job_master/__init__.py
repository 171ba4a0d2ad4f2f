"""One job: its scheduler's decisions carried out, its tasks, its checkpoints. Begin with `job_master`."""
