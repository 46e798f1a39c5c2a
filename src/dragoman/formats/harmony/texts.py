"""The fixed words of a harmony prompt: who the model is told it is.

Taken word for word from the package openai-harmony 0.0.8 (Copyright OpenAI, Apache License 2.0; see
NOTICE), because a model was trained on exactly these.
"""

from __future__ import annotations

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"
