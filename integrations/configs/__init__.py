"""Configurations of other frameworks read into recipes, and recipes written as theirs: one file per framework."""
