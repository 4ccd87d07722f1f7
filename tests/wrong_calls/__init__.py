"""Wrong calls of every entrance, as rows of one form: name, call, error and message."""
