"""Where replicas come from: sources that list them, and the roster that makes one list of all."""
