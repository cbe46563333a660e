"""What a person was told."""

from crpipe.core.text import NullProgress


class Told(NullProgress):
    """Keeps the lines that were said."""

    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)

    def __str__(self):
        return "\n".join(self.lines)


class Lines(list):
    """A screen of a terminal that keeps its lines."""

    tty = True

    message = show = live = list.append
