"""What an answer must look like, as a grammar over everything the model writes, markers included.

A request's demands (`demand`) are laid into the envelope of a format (`harmony`, `markup`), in the
grammar language of llguidance. Nothing here runs a grammar or knows a vocabulary.
"""
