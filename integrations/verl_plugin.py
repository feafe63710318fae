"""What verl imports by the entry point ``verl.plugins``: it loads modules and calls nothing, so importing this one registers."""

from .verl import register_or_say

register_or_say()
