"""What a conversation is: items, requests, events, responses, and the laws that bind them.

The core is pure. It awaits nothing, opens nothing, reads no clock and rolls no dice, and it
knows neither a protocol's field names nor a provider's habits.
"""
