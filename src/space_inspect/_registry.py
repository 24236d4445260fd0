"""What Inspect finds by the entry point `inspect_ai`: the provider `space`, the tasks, the scripted attacker."""

from space_inspect.attacker import space_script
from space_inspect.ground import space_ground
from space_inspect.provider import space
from space_inspect.tasks import escape

__all__ = ["escape", "space", "space_ground", "space_script"]
