"""Jobs and TaskManagers as plain data for clients, pages and Prometheus. Begin with `documents`."""
