"""Text from outside, bounded and escaped: documents, log lines, and the texts of errors."""
