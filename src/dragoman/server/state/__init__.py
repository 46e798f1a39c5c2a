"""Stored responses, conversations and completions: their state, and their endpoints."""
