"""Between messages and tokens: chat templates, tokenising, and parsing what a model generates."""
