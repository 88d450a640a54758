"""Views: one scene of a recording, drawn as bqplot widgets, SVG, PNG or text."""
