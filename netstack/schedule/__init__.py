"""From a job graph to a plan, and from events to instructions: pure functions and state machines, no I/O, no clock."""
