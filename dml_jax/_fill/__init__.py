"""Arrays of one value, and of an arithmetic sequence."""
