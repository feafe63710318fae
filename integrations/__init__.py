"""Recipes inside other frameworks: each adapter in a file of its own, which imports its framework only when it is used."""
