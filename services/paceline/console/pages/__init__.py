"""The screens of a live cluster as pure functions: facts in, the JSON twin out; templates draw the same values."""
