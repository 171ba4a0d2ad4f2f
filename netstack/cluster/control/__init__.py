"""The control protocol between clients, JobManagers and TaskManagers: greetings, messages, heartbeats."""
