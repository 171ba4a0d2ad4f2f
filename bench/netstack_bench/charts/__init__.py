"""Charts as SVG text and the HTML pages around them, for every command that draws: one look, one script, no network."""
