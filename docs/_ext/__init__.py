"""The part of this site that is written from the code, each time it is built."""
