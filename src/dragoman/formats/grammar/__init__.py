"""Grammars of constrained answers, over everything the model writes, markers included."""
