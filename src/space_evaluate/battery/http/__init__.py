"""HTTP: requests with two meanings."""
