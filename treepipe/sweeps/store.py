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
from treepipe.sim.predict import MOST
from treepipe.sweeps.columns import KeyColumns
from treepipe.sweeps.grid import Sweep

SCHEMA = "treepipe.sweep/1"
MANIFEST = "_sweep.json"
"""Name of the manifest; readers of Parquet folders skip names that begin with "_"."""
BATCHES = 16
"""Number of a sweep's files, unless its scenarios are simulated together, or are more than
``MOST`` per file."""
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
        if (fault := store._difference()) is not None:
            if not force:
                raise UserError(
                    f"--out {out}: holds results of {fault}; name another folder, or throw them "
                    f"away with --force"
                )
            for file in (out / MANIFEST, *store.files):
                file.unlink()
        if not (out / MANIFEST).exists():
            text = json.dumps(store.manifest, indent=2) + "\n"
            write_file(out / MANIFEST, text, "--out")
        return store

    def _difference(self) -> str | None:
        """Describe the other sweep whose results the folder holds; None if there is no other."""
        if not (self.out / MANIFEST).exists():
            return None
        there, own = read_json(self.out / MANIFEST), self.manifest
        if there.get("sweep") != own["sweep"]:
            return "another sweep"
        by_others = "this sweep by another treepipe, or with other profiles or files"
        return by_others if there.get("inputs") != own["inputs"] else None

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
        "inputs": fingerprint(named, sweep.path.parent, (*ROOMS, "sweeps")),
        "scenarios": len(sweep),
        "batch": MOST if sweep.is_alike else min(MOST, ceil(len(sweep) / BATCHES)),
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

    types = {
        "scenario_index": "int64",
        "scenario_hash": "string",
        "replication": "int64",
        "error": "string",
        "warnings": pyarrow.list_(pyarrow.string()),
        "utilization": pyarrow.map_(pyarrow.string(), pyarrow.float64()),
        **keys.kinds,
    }
    fields = [pyarrow.field(name, kind) for name, kind in types.items()]
    fields += [
        pyarrow.field(name, "double", metadata={"unit": each.unit})
        for name, each in METRICS.items()
    ]
    table = pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(fields))
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()
