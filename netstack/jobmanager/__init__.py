"""The service that runs jobs: accepts them, knows the TaskManagers, drives one scheduler for each job."""
