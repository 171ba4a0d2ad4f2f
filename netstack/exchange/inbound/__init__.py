"""The consuming half: channels, gates, and readers."""
