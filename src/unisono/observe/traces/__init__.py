"""The logs of ranks in files: recorded, read again, and shown as a report or in Perfetto."""
