"""Ids that are numbers, nearly all of them in order: eight bytes each, where a string and its place in a dict take 150.

What is out of order (a number that was given twice, or too late) is kept by name.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

_NONE = -1


class Numbers(Sequence[str]):
    """Ids by ordinal."""

    def __init__(self, values: bytes = b"", odd: Mapping[int, str] | None = None) -> None:
        self.values = array("q", values)  # never falls: an odd one stands as the greatest before it
        self.odd: dict[int, str] = dict(odd or {})  # ordinal -> id

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        value = self.values[i]
        return self.odd.get(i if i >= 0 else i + len(self)) or str(value) if self.odd else str(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and self.values == other.values and self.odd == other.odd

    __hash__ = None  # type: ignore[assignment]

    @property
    def greatest(self) -> int:
        return self.values[-1] if self.values else _NONE

    def before(self, number: int) -> int:
        """How many entries stand before the first one of `number` or more."""
        return bisect_left(self.values, number)


class Ordinals(Mapping[str, int]):
    """The same the other way round: ordinals by id."""

    def __init__(self, ids: Numbers) -> None:
        self.ids = ids
        self.odd = {name: i for i, name in ids.odd.items()}

    def find(self, number: int) -> int:
        """Ordinal of the entry that is called by this number; -1 where there is none."""
        values = self.ids.values
        i = bisect_left(values, number)
        if i < len(values) and values[i] == number and i not in self.ids.odd:
            return i
        return self.odd.get(str(number), _NONE) if self.odd else _NONE

    def add(self, name: str) -> None:
        """Let `name` be the id of the next entry, which is out of order."""
        i = len(self.ids)
        self.ids.values.append(self.ids.greatest)
        self.ids.odd[i] = name
        self.odd[name] = i

    def __getitem__(self, name: str) -> int:
        if name in self.odd:
            return self.odd[name]
        if name.isdecimal() and len(name) < 17 and str(number := int(name)) == name:
            i = self.find(number)
            if i >= 0:
                return i
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)
