"""Training of the tiny model that the tests run under llama.cpp: its conversations, its trainer."""
