"""The slots of all TaskManagers, and the jobs that they belong to. Begin with `slots`."""
