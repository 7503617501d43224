"""What each library does with every call, dtype and op, tried on three ranks."""
