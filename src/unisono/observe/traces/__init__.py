"""What ranks have logged, kept in files: recorded, read again, and told as a report or for Perfetto."""
