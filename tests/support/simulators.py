"""Simulators of a package outside crpipe: a good one, and what can be wrong with one."""

from crpipe.events.layout import Field, Layout

LAYOUT = Layout(
    "hits", (Field("id", "uint64", "", 0, 1e9, "number"),), (Field("x", "float32", "m", -1, 1, "x"),), ("id",)
)


class Tiny:
    """Two files of a few bytes for each range."""

    layout = LAYOUT

    def files(self, name):
        return [f"{name.first}.bin", f"{name.last}.bin"]

    def write(self, name, file, seed, path):
        path.write_text(f"{name} {file} {seed}")

    def tables(self, folder):
        return {}


class WithTables(Tiny):
    text = "id,x\n1,2\n"
    gives = "what it wrote"

    def tables(self, folder):
        if isinstance(self.gives, Exception):
            raise self.gives
        if self.gives != "what it wrote":
            return self.gives
        path = folder / "geometry.csv"
        path.write_text(self.text)
        return {"geometry": path}


class FailsToName(Tiny):
    def files(self, name):
        return {}["nothing"]


class NamesNoList(Tiny):
    def files(self, name):
        return "a text"


class FailsToWrite(Tiny):
    def write(self, name, file, seed, path):
        raise ValueError("no such\nparticle")


class WritesNothing(Tiny):
    def write(self, name, file, seed, path):
        pass


class FillsTheDisk(Tiny):
    def write(self, name, file, seed, path):
        raise OSError(28, "No space left on device", str(path))


class NoLayout(Tiny):
    layout = "hits"


class NoTables:
    layout = LAYOUT
    files = write = None
