"""Stores: responses with their event logs, conversations, leases and outgoing messages.

A store knows no protocol and calls no model. Everything in it belongs to a
tenant, and no tenant sees another's.
"""
