"""TOML files that we write read as what was meant."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.files.toml_file import read_toml, toml_text, tomllib

SCALARS = st.text(st.characters(codec="utf-8")) | st.booleans()
SCALARS |= st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.dates()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.1"), inner)
)


@given(st.dictionaries(st.text("ab_1.", min_size=1), VALUES, max_size=4))
def test_what_is_written_reads_as_it_was(data: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_text(toml_text(data), encoding="utf-8")
        assert read_toml(path) == data


@given(st.dictionaries(st.integers(0, 99), st.floats(-1e9, 1e9), min_size=1))
def test_figures_are_written_with_the_digits_that_are_known(times: dict[int, float]) -> None:
    text = toml_text({"layer": [{"ms": {0: times}}]}, ["Measured."], digits=5)
    (layer,) = tomllib.loads(text)["layer"]
    assert layer["ms"]["0"] == {str(n): float(f"{time:.5g}") for n, time in times.items()}


@pytest.mark.parametrize("value", [None, object()])
def test_what_toml_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        toml_text({"a": [value]})
