"""How the pocket model came to be: what it learns, and the script that teaches it."""
