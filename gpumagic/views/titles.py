"""How devices are titled: a slice of a GPU stands under its GPU and is told from its siblings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..sample import Device
from .wording import TITLE, clean, text_width

__all__ = ["BOLD", "INDENT", "Title", "in_order", "title_width", "titles_of"]

BOLD = 1.06
"""How much wider bold text is."""

INDENT = 8.0
"""How far a slice's title is moved in, in pixels."""

_WHOLE = 36


@dataclass(frozen=True, slots=True)
class Title:
    """A device's title; ``label`` is its full name.

    ``above`` is the title of its GPU where it is the first slice of one that is not shown.
    """

    text: str
    label: str
    above: str = ""
    indent: float = 0.0

    @property
    def width(self) -> float:
        """The room that it takes, with its indentation."""
        return self.indent + title_width(self.text)


def title_width(text: str) -> float:
    """Estimate the width of a title in pixels, on the safe side."""
    return text_width(text, TITLE) * BOLD


def in_order(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Put each slice behind its GPU."""
    def place(device: Device) -> tuple[float, bool, str]:
        index = float("inf") if device.nvml_index is None else device.nvml_index
        return index, device.is_slice, device.id if device.is_slice else ""

    return tuple(sorted(devices, key=place))


def _slice_names(devices: Sequence[Device]) -> Mapping[str, str]:
    """Name slices by as much of their UUIDs as tells those of one GPU apart."""
    found: dict[str, str] = {}
    for index in {d.nvml_index for d in devices if d.is_slice}:
        group = [d for d in devices if d.is_slice and d.nvml_index == index]
        for digits in range(4, _WHOLE + 1):
            names = {d.id: clean(d.slice_name(digits)) for d in group}
            if len(set(names.values())) == len(group):
                break
        found.update(names)
    return found


def titles_of(devices: Sequence[Device]) -> Mapping[str, Title]:
    """Return the titles of devices, which are in the order of :func:`in_order`, by their ids."""
    slices = _slice_names(devices)
    told = {d.nvml_index for d in devices if not d.is_slice}
    found: dict[str, Title] = {}
    for device in devices:
        name = slices.get(device.id)
        if name is None:
            label = clean(device.label)
            found[device.id] = Title(label, label)
            continue
        if device.nvml_index is None:
            found[device.id] = Title(name, name)
            continue
        parent = f"GPU {device.nvml_index}"
        above = "" if device.nvml_index in told else parent
        told.add(device.nvml_index)
        found[device.id] = Title(name, f"{parent} {name}", above, INDENT)
    return found
