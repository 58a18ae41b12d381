"""What an experiment came to, for machines and for people."""
