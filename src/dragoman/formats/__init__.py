"""Conversations as tokens: what a model reads and writes when no server stands in between.

A format renders a request as the prompt a model was trained on and parses what the model writes
back into events. All of it is pure: ids and text in, ids and events out; no model, no clock.
"""
