"""Package repositories: allowed hosts as ways out."""
