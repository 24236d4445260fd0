"""How our own processes speak to each other: sessions of streams (control to node, node to guest), records (node to rootd)."""
