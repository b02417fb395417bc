"""Questions to the user's own documents: pages, an index of passages, grounded answers."""
