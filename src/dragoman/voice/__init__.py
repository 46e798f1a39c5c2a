"""Gives any model ears and a voice: sound, speech detection, and adapters for recognisers and
synthesizers.
"""
