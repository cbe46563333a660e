"""Puts the workflow into the wheel, as crpipe/setup/folder/; all else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
PATTERNS = HERE / "src" / "crpipe" / "setup" / "workflow_files.txt"


class BuildWithWorkflow(build_py):
    """Copies the files of the workflow beside the modules; a checkout that is installed as such has them."""

    def run(self) -> None:
        """Build the modules, then copy."""
        super().run()
        if self.editable_mode:
            return
        for pattern in PATTERNS.read_text().splitlines():
            if pattern.startswith("#"):
                continue
            for file in sorted(HERE.glob(pattern)):
                target = Path(self.build_lib) / "crpipe" / "setup" / "folder" / file.relative_to(HERE)
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithWorkflow})
