"""The life of a sandbox as pure decisions: the transition table, admission, and what to do after a crash."""
