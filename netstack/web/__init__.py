"""The JobManager's page and its REST interface: what runs where, and why; read-only unless it is told otherwise."""
