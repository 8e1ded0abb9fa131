"""Which engine reads recordings: DuckDB, pyarrow, polars or pandas, on ugly files, a million rows, and weight.

An ugly file counts as read if its numbers and times come out right: by the engine's defaults, when it is told what
the file is (separator, decimal mark, lines to skip, encoding, format of times), or not at all.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measurements.measure import heading

ROWS, CHANNELS = 1_000_000, 10
ENGINES = {"duckdb": ["duckdb"], "pyarrow": ["pyarrow"], "polars": ["polars"], "pandas": ["pandas"]}
NEEDS = {"polars": ["polars-runtime-32"], "pandas": ["python-dateutil"]}

PLAIN = "time,a,b\n2024-03-01 00:00:00,1.5,2\n2024-03-01 00:00:01,2.5,\n2024-03-01 00:00:02,3.5,4\n"
GERMAN = "time;a;b\n01.03.2024 00:00:00;1,5;2\n01.03.2024 00:00:01;2,5;\n01.03.2024 00:00:02;3,5;4\n"
ABOVE = "sep=;\nBoiler 3;exported by Müller\n\n"
EXPECTED = np.array([[1.5, 2.0], [2.5, np.nan], [3.5, 4.0]])
FILES: dict[str, bytes] = {
    "plain": PLAIN.encode(),
    "decimal comma": GERMAN.encode(),
    "sep= and lines above": (ABOVE + GERMAN).encode(),
    "Latin-1": (ABOVE + GERMAN).encode("latin-1"),
    "UTF-16": GERMAN.encode("utf-16"),
    "a line of units": GERMAN.replace("b\n", "b\n;°C;bar\n", 1).encode(),
    "words among numbers": PLAIN.replace(",\n", ",Bad Input\n").encode(),
    "comment in the middle": PLAIN.replace("2024-03-01 00:00:02", "# calibrated\n2024-03-01 00:00:02").encode(),
    "gzip": gzip.compress(PLAIN.encode()),
}
FORMAT = "%d.%m.%Y %H:%M:%S"


def facts(name: str) -> dict[str, Any]:
    """What a person could tell an engine about a file."""
    skip = 3 if name in ("sep= and lines above", "Latin-1") else 0
    german = name in tuple(FILES)[1:6]
    encoding = {"Latin-1": "latin-1", "UTF-16": "utf-16"}.get(name, "utf-8")
    return {"skip": skip, "german": german, "encoding": encoding, "units": name == "a line of units"}


def duckdb_found(path: Path) -> Any:
    """DuckDB's defaults."""
    import duckdb

    return _frame(duckdb.connect().execute("SELECT * FROM read_csv(?)", [str(path)]).fetchnumpy())


def duckdb_told(path: Path, skip: int, german: bool, encoding: str, units: bool) -> Any:
    """DuckDB with everything as text, and casts that give NULL where they fail."""
    import duckdb

    # A cast that stands alone is done while the file is read, where TRY_CAST fails as CAST does: hence the trim.
    number = "try_cast(replace({0}, ',', '.') AS DOUBLE)" if german else "try_cast(trim({0}) AS DOUBLE)"
    time = f"try_strptime(time, '{FORMAT}')" if german else "try_cast(trim(time) AS TIMESTAMP)"
    read = (
        f"read_csv(?, auto_detect=false, columns={{'time': 'VARCHAR', 'a': 'VARCHAR', 'b': 'VARCHAR'}}, quote='\"', "
        f"delim='{';' if german else ','}', skip={skip + 1}, encoding='{encoding}', comment='#')"
    )
    select = f"SELECT {time} AS time, {number.format('a')} AS a, {number.format('b')} AS b FROM {read}"
    return _frame(duckdb.connect().execute(f"{select} OFFSET {int(units)}", [str(path)]).fetchnumpy())


def pyarrow_found(path: Path) -> Any:
    """The defaults of pyarrow."""
    from pyarrow import csv

    return _frame({name: column.to_numpy() for name, column in _columns(csv.read_csv(path))})


def pyarrow_told(path: Path, skip: int, german: bool, encoding: str, units: bool) -> Any:
    """The options of pyarrow; there is none for comments, nor to take words as missing without listing them."""
    from pyarrow import csv

    table = csv.read_csv(
        path,
        csv.ReadOptions(skip_rows=skip, skip_rows_after_names=int(units), encoding=encoding),
        csv.ParseOptions(delimiter=";" if german else ","),
        csv.ConvertOptions(decimal_point="," if german else ".", timestamp_parsers=[FORMAT] if german else None),
    )
    return _frame({name: column.to_numpy() for name, column in _columns(table)})


def _columns(table: Any) -> Any:
    return zip(table.column_names, table.columns, strict=True)


def polars_found(path: Path) -> Any:
    """The defaults of polars."""
    import polars

    return _frame(polars.read_csv(path, try_parse_dates=True))


def polars_told(path: Path, skip: int, german: bool, encoding: str, units: bool) -> Any:
    """Polars with everything as text, and casts that give null where they fail."""
    import polars

    frame = polars.read_csv(
        path,
        separator=";" if german else ",",
        skip_lines=skip,
        skip_rows_after_header=int(units),
        encoding=encoding if encoding != "utf-8" else "utf8",
        comment_prefix="#",
        infer_schema=False,
    )
    texts = polars.col("a", "b").str.replace(",", ".") if german else polars.col("a", "b")
    time = polars.col("time").str.to_datetime(FORMAT if german else None, strict=False)
    return _frame(frame.select(time, texts.cast(polars.Float64, strict=False)))


def pandas_found(path: Path) -> Any:
    """The defaults of pandas."""
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _frame(pandas.read_csv(path, parse_dates=[0]))


def pandas_told(path: Path, skip: int, german: bool, encoding: str, units: bool) -> Any:
    """The options of pandas, and numbers made of what stayed text."""
    import pandas

    frame = pandas.read_csv(
        path,
        sep=";" if german else ",",
        decimal="," if german else ".",
        skiprows=skip,
        encoding=encoding,
        comment="#",
    ).iloc[int(units) :]
    texts = frame[["a", "b"]].astype(str).replace(",", ".", regex=True)
    frame[["a", "b"]] = texts.apply(pandas.to_numeric, errors="coerce")
    return _frame(frame.assign(time=pandas.to_datetime(frame["time"], format=FORMAT if german else None)))


def _frame(columns: Any) -> tuple[Any, Any]:
    """Times and numbers as numpy arrays."""
    masked: Any = np.ma.masked_array
    numbers = [np.ma.filled(masked(columns[name]).astype(float), np.nan) for name in ("a", "b")]
    return np.asarray(columns["time"]).astype("datetime64[s]"), np.stack(numbers, axis=1)


def is_read(read: Callable[[], Any]) -> bool:
    """Whether numbers and times are right."""
    try:
        times, numbers = read()
    except Exception:  # whatever an engine raises
        return False
    moments = np.datetime64("2024-03-01T00:00:00") + np.arange(3)
    return bool(np.array_equal(times, moments) and np.array_equal(numbers, EXPECTED, equal_nan=True))


def ugly(folder: Path) -> None:
    """Print how each engine does on each ugly file."""
    print(f"  {'':<24}" + "".join(f"{engine:>9}" for engine in ENGINES))
    for name, content in FILES.items():
        path = folder / ("a.csv.gz" if name == "gzip" else "a.csv")
        path.write_bytes(content)
        verdicts = []
        for engine in ENGINES:
            found, told = (globals()[f"{engine}_{how}"] for how in ("found", "told"))
            told_right = is_read(lambda told=told, path=path, name=name: told(path, **facts(name)))  # type: ignore[misc]
            by_itself = is_read(lambda found=found, path=path: found(path))  # type: ignore[misc]
            verdicts.append("itself" if by_itself else "told" if told_right else "no")
        print(f"  {name:<24}" + "".join(f"{verdict:>9}" for verdict in verdicts))


MILLION = {
    "duckdb": "database = duckdb.connect(); database.execute('SET enable_progress_bar = false'); "
    "columns = database.execute(f\"SELECT * FROM read_csv('{path}')\").fetchnumpy(); "
    "values = np.column_stack([columns[f'c{k}'] for k in range(10)])",
    "pyarrow": "from pyarrow import csv; table = csv.read_csv(path); "
    "values = np.column_stack([table[f'c{k}'].to_numpy() for k in range(10)])",
    "polars": "values = polars.read_csv(path, try_parse_dates=True).drop('time').to_numpy()",
    "pandas": "values = pandas.read_csv(path, parse_dates=['time']).drop(columns='time').to_numpy()",
}
TIMED = """
import sys, time, numpy as np, {engine}
from measurements.measure import peak_memory as peak
path = sys.argv[1]
before, began, cpu = peak(), time.perf_counter(), time.process_time()
{code}
took, cpu, used = time.perf_counter() - began, time.process_time() - cpu, peak() - before
wrong = int((values != np.load(sys.argv[2])).sum())
print(f"{{took:.1f}} s, {{cpu:.1f}} s of processor time, {{used:.0f}} MB beside {{before:.0f}} MB, "
      f"{{wrong}} of {{values.size}} numbers off by a bit")
"""


def million(folder: Path) -> None:
    """Print what a million rows of ten channels cost each engine, in a process of its own."""
    path = write_million(folder)
    for engine, code in MILLION.items():
        program = TIMED.format(engine=engine, code=code)
        command = [sys.executable, "-c", program, str(path), str(folder / "million.npy")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"  {engine:<10}{done.stdout.strip()}")


def write_million(folder: Path) -> Path:
    """A million rows of ten channels with a time, as text of about 210 MB, and as an array beside it."""
    import polars

    rng = np.random.default_rng(0)
    values = np.sin(np.arange(ROWS)[:, None] / np.arange(7.0, 17.0)) + 0.1 * rng.normal(size=(ROWS, CHANNELS))
    np.save(folder / "million.npy", values)
    path = folder / "million.csv"
    frame = polars.DataFrame(values, [f"c{k}" for k in range(CHANNELS)])
    stamps = np.datetime64("2024-01-01T00:00:00", "us") + np.arange(ROWS) * np.timedelta64(1_000_000, "us")
    frame.insert_column(0, polars.Series("time", stamps)).write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S")
    return path


def weight(folder: Path) -> None:
    """Print the installed size of each engine with what it needs beside numpy, and its wheel for aarch64."""
    for engine, names in ENGINES.items():
        needed = names + NEEDS.get(engine, [])
        installed = sum(_installed(name) for name in needed)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"-d{folder}"]
        platforms = [f"--platform=manylinux{kind}_aarch64" for kind in ("2014", "_2_17", "_2_28")] + ["--platform=any"]
        wheels = subprocess.run([*command, *platforms, *needed], capture_output=True, text=True, check=False)
        size = sum(file.stat().st_size for file in folder.glob("*.whl"))
        found = f"{size / 1e6:.0f} MB to download" if wheels.returncode == 0 else "no wheel"
        for file in folder.glob("*.whl"):
            file.unlink()
        version = importlib.metadata.version(engine)
        print(f"  {engine:<10}{version:<10}{installed / 1e6:.0f} MB installed; for aarch64 {found}")


def _installed(name: str) -> int:
    files = importlib.metadata.files(name) or []
    return sum(Path(file.locate()).stat().st_size for file in files if Path(file.locate()).exists())


def main() -> None:
    """Print all three comparisons."""
    heading("Engines for reading recordings")
    with tempfile.TemporaryDirectory() as folder:
        print("Ugly files: read right by itself, when told, or not")
        ugly(Path(folder))
        print(f"{ROWS:,} rows of {CHANNELS} channels with times, {ROWS * CHANNELS * 8 / 1e6:.0f} MB as numbers")
        million(Path(folder))
        print("Weight, beside numpy")
        weight(Path(folder))


if __name__ == "__main__":
    main()
