"""Speech for any model: sound, speech detection, and adapters for recognisers and
synthesizers.
"""
