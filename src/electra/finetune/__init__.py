"""Heads on an encoder, many seeds at once, results that can be trusted."""
