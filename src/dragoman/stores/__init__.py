"""What a server remembers: responses, the events they came by, conversations, and who runs what.

A store keeps and finds; it decides nothing about protocols and asks no model. Everything in it
belongs to a tenant, and nobody sees what another has.
"""
