"""A panel of JupyterLab beside the notebook, by the package sidecar, that holds a live view."""

from __future__ import annotations

from typing import Any

from ..errors import SettingError
from .live_widgets import quiet

__all__ = ["SENTENCE", "SidePanel"]

SENTENCE = (
    "The GPU view is in a panel beside the notebook. Only JupyterLab has such panels, and needs the"
    " package sidecar where its server runs; if none has opened, %gpuwatch shows the view here."
)
"""What is printed: the kernel cannot know whether a panel has opened."""


class SidePanel:
    """A panel with one output in it.

    Raises :class:`SettingError` where sidecar is not installed in the kernel's environment.
    """

    def __init__(self) -> None:
        with quiet():
            try:
                from sidecar import Sidecar
            except ImportError as error:
                raise SettingError(
                    "--sidecar needs the package sidecar, in the environments of JupyterLab and"
                    " of this kernel: `pip install sidecar`, then reload the page"
                ) from error
            self._sidecar: Any = Sidecar(title="GPU", anchor="split-right")

    def bundle(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Put a mimebundle into the panel; return the one that opens the panel."""
        self._sidecar.outputs = (
            {"output_type": "display_data", "data": shown, "metadata": {}},
        )
        return {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2, "version_minor": 0, "model_id": self._sidecar.model_id,
            },
            "text/plain": "GPU view in a side panel",
        }

    def close(self) -> None:
        """Close the panel and its models."""
        self._sidecar.layout.close()
        self._sidecar.close()
