"""When subtasks are scheduled: region by region, or vertex by vertex."""
