"""The TaskManager as a long-lived process: who may come in, which runs there are, what they run, how they end."""
