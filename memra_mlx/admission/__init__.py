"""The ordered path that every request takes before it reaches an engine."""
