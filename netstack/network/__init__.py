"""Where trio starts: connections, task managers, and what waits."""
