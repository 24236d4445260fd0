"""Records that nobody can change unseen: a chain of hashes whose head is kept elsewhere, under a key of the broker's."""
