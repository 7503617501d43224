"""What a rank has done: rings of entries in shared memory, written as it goes, that anybody may read."""
