"""The names that a program uses, and new ones that are unique."""

from __future__ import annotations


class Names(set[str]):
    """Every name that a program uses or used, of values and nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._spare: dict[str, int] = {}
        # since the last mark: the hint, its number before, and the new name
        self._taken: list[tuple[str, int | None, str]] = []

    def fresh(self, hint: str) -> str:
        """Returns a name that is free, and takes it: `hint`, else `hint_2`, `hint_3`, ..."""
        before = self._spare.get(hint)
        name, count = hint, before or 1
        while name in self:
            count += 1
            name = f"{hint}_{count}"
        self._spare[hint] = count
        self._taken.append((hint, before, name))
        self.add(name)
        return name

    def mark(self) -> None:
        """From now on, remember the names that are taken."""
        self._taken.clear()

    def forget(self) -> None:
        """Free the names that were taken since the last mark, as if they had never been taken."""
        while self._taken:
            hint, before, name = self._taken.pop()
            self.discard(name)
            if before is None:
                del self._spare[hint]
            else:
                self._spare[hint] = before
