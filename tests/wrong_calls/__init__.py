"""The rows of test_errors.py, by the argument that is wrong."""
