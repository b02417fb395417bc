"""What is built on a generator."""
