"""Token formats: a conversation as a prompt, and a model's output as events."""
