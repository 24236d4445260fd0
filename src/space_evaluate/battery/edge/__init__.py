"""Edge: what a hostile kernel puts on the wire."""
