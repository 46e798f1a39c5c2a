"""Markup families: formats whose calls and reasoning stand between marks in the text."""
