"""Sinks take each record of a recording as it is written."""
