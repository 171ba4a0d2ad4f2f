"""Example jobs to run and modify: `netstack run netstack.examples.word_count:job --input FILE`."""

from .batch_word_count import batch_word_count

__all__ = ["batch_word_count"]
