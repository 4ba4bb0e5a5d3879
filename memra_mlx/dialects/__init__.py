"""Wire dialects: each parses its JSON into a Request and renders events as its own frames and bodies."""
