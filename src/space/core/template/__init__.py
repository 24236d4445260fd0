"""Templates as recipes: what one is, and in which steps it is made. Pure; who makes them is the node."""
