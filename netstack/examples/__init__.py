"""Jobs to run, to break and to change: `netstack run netstack.examples.word_count:job --input FILE`."""
