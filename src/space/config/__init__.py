"""Where things are and how they are set: instances, artefacts, settings. Standard library only."""
