"""The folder of a sweep: a Parquet file per batch of scenarios, and a manifest of the sweep.

Invariant: a batch's file is either complete or missing, and its name determines its scenarios; so
the missing files are the remaining work.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.outputs import claim_results, write_file
from treepipe.files.reading import read_json
from treepipe.results.metrics import METRICS
from treepipe.sim.points import ROOMS, fingerprint
from treepipe.sweeps.columns import KeyColumns
from treepipe.sweeps.grid import Sweep

OWN = ("scenario_index", "scenario_hash", "replication", "error", "warnings", "utilization")
"""Columns that are neither keys nor metrics."""
SCHEMA = "treepipe.sweep/1"
MANIFEST = "_sweep.json"
"""Name of the manifest; readers of Parquet folders skip names that begin with "_"."""
BATCHES = 100
"""Number of a sweep's files, unless they would hold more than ``MOST_TOGETHER`` scenarios each."""
MOST_TOGETHER = 100
LIBRARIES = ("treepipe", "numpy", "scipy", "pyarrow")


@dataclass(frozen=True)
class Store:
    """The folder ``out`` with the results of a sweep so far.

    Attributes:
        manifest: the content of its manifest.
    """

    out: Path
    sweep: Sweep
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, out: Path, sweep: Sweep, *, force: bool = False) -> Store:
        """Open the folder, or make it.

        Args:
            force: delete results of another sweep.

        Raises ``UserError``: it holds something else.
        """
        claim_results(out, MANIFEST, "sweep")
        store = cls(out, sweep, _manifest(sweep))
        fault = store._difference()
        if fault is not None and not force:
            raise UserError(
                f"--out {out}: holds results of {fault}; name another folder, or throw them away "
                f"with --force"
            )
        if fault is not None:
            (out / MANIFEST).unlink()
            for file in store.files:
                file.unlink()
        if not (out / MANIFEST).exists():
            text = json.dumps(store.manifest, indent=2) + "\n"
            write_file(out / MANIFEST, text, "--out")
        return store

    def _difference(self) -> str | None:
        """Describe the other sweep whose results the folder holds; None if there is no other."""
        if not (self.out / MANIFEST).exists():
            return None
        there = read_json(self.out / MANIFEST)
        for key, what in (
            ("sweep", "another sweep"),
            ("inputs", "this sweep by another treepipe, or with other profiles or files"),
        ):
            if there.get(key) != self.manifest[key]:
                return what
        return None

    @property
    def files(self) -> list[Path]:
        """The finished batches' files, in order."""
        return sorted(self.out.glob("batch-*.parquet"))

    @property
    def missing(self) -> list[int]:
        """The batches that remain."""
        there = {file.name for file in self.files}
        count = ceil(len(self.sweep) / self.manifest["batch"])
        return [batch for batch in range(count) if self._file(batch).name not in there]

    def scenarios(self, batch: int) -> range:
        """Return the indices of a batch's scenarios."""
        size = self.manifest["batch"]
        return range(batch * size, min((batch + 1) * size, len(self.sweep)))

    def write(self, batch: int, data: bytes) -> None:
        """Write a batch's file."""
        write_file(self._file(batch), data, "--out")

    def _file(self, batch: int) -> Path:
        return self.out / f"batch-{batch:06}.parquet"

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as a ``pyarrow.Table``, in the order of the scenarios."""
        from pyarrow import concat_tables, parquet

        return concat_tables(
            parquet.read_table(file, columns=columns and list(columns)) for file in self.files
        )


def _manifest(sweep: Sweep) -> dict[str, Any]:
    named = [dict(sweep.base), sweep.section.model_dump(), sweep.first.model_dump()]
    return {
        "schema": SCHEMA,
        "name": sweep.base.get("name"),
        "sweep": sweep.digest,
        "inputs": fingerprint(
            named, sweep.path.parent, (*ROOMS, "sweeps")
        ),  # the modules that make the rows
        "scenarios": len(sweep),
        "batch": min(MOST_TOGETHER, ceil(len(sweep) / BATCHES)),
        "varied": sweep.section.keys,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in LIBRARIES},
        },
    }


def parquet_bytes(keys: KeyColumns, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the rows as a Parquet file with all of a sweep's columns."""
    import pyarrow
    from pyarrow import parquet

    own = {
        "scenario_index": pyarrow.int64(),
        "scenario_hash": pyarrow.string(),
        "replication": pyarrow.int64(),
        "error": pyarrow.string(),
        "warnings": pyarrow.list_(pyarrow.string()),
        "utilization": pyarrow.map_(pyarrow.string(), pyarrow.float64()),
    }
    types = {
        "bool": pyarrow.bool_(),
        "int64": pyarrow.int64(),
        "double": pyarrow.float64(),
        "string": pyarrow.string(),
    }
    fields = [pyarrow.field(name, own[name]) for name in OWN]
    fields += [pyarrow.field(name, types[kind]) for name, kind in keys.kinds.items()]
    fields += [
        pyarrow.field(name, pyarrow.float64(), metadata={"unit": METRICS[name].unit})
        for name in METRICS
    ]
    table = pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(fields))
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()
