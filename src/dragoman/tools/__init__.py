"""Tools: Python functions that a model may call, and what runs them."""

from .function import tool
from .run import Context, Runner, Tool, ToolError

__all__ = ["Context", "Runner", "Tool", "ToolError", "tool"]
