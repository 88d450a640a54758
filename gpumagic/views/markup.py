"""Sentences as HTML: escaped, with code where backticks say so."""

from __future__ import annotations

from html import escape

__all__ = ["code_html"]


def code_html(text: str) -> str:
    """Escape a text and set what stands between backticks as code; a lone one stays."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        # The last backtick opens nothing.
        pieces[-2:] = ["`".join(pieces[-2:])]
    return "".join(
        f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces)
    )
