"""Measures Dragoman beside others on the same work, in the same run: `python -m bench`."""
