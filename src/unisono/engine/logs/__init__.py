"""What a rank has done: rings of entries in shared memory. The rank writes them; any process of its user may read."""
