"""The fixed texts of a harmony prompt.

Verbatim from the package openai-harmony 0.0.8 (Copyright OpenAI, Apache License 2.0; see NOTICE),
because the model was trained on exactly these.
"""

from __future__ import annotations

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"
