"""TOML files that we write read as what was meant."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from treepipe.files.toml_file import read_toml, toml_text

SCALARS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])) | st.booleans()
SCALARS |= st.integers(-(2**40), 2**40) | st.floats(-1e6, 1e6, allow_nan=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.1"), inner)
)


@given(st.dictionaries(st.text("ab_1.", min_size=1), VALUES, max_size=4))
def test_what_is_written_reads_as_it_was(data: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_text(toml_text(data), encoding="utf-8")
        assert read_toml(path) == data
