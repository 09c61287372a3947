"""Choose a device and a precision, and run on it."""
