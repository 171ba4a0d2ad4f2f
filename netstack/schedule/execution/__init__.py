"""Executions of subtasks: their states, attempts and versions."""
