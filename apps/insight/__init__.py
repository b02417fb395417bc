"""What attention does inside a model, measured on the user's own text."""
