"""Put something into the output of the cell that runs, or has just ended."""

from __future__ import annotations

__all__ = ["show", "show_as"]


def show(what: object) -> None:
    """Display an object in the forms that it has."""
    from IPython.display import display

    display(what)  # type: ignore[no-untyped-call]


def show_as(html: str, text: str) -> None:
    """Display one thing as HTML and as text."""
    from IPython.display import display

    display({"text/html": html, "text/plain": text}, raw=True)  # type: ignore[no-untyped-call]
