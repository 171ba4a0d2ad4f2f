"""Executions: states, attempts and versions of subtasks."""
