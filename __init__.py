"""A glossary of losses: RL objectives for language models, registered by name and composed from YAML.

Importing this file imports nothing else: a public name is fetched from its folder when it is first used.
"""
__version__ = "0.1.0"
