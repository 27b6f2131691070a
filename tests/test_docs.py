"""The site builds without a warning, and no page is left out."""

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    command += ["-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "html")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert "index" in pages
    assert pages <= {page.stem for page in (tmp_path / "html").glob("*.html")}
