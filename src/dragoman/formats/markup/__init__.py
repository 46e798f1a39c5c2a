"""Markup of many families, heard by one engine: tags, brackets and control tokens around calls.

What differs between families is data (`families`); how a conversation becomes a prompt is the
business of a frame or of a chat template.
"""
