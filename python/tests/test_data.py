"""pandas and pyarrow."""

import fsspec
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest


@pytest.fixture
def fs(kind, options):
    return fsspec.filesystem(kind, **options)


def frame(rows):
    return pandas.DataFrame({"number": range(rows), "text": [f"row {n}" for n in range(rows)]})


def test_pandas_reads_and_writes_csv_and_parquet(kind, url, options, scratch):
    # pandas takes only schemes that begin with a letter.
    base = f"{url.replace('9p://', 'p9+barge://')}/{scratch}"
    storage = {"storage_options": options} if kind == "barge" else {}
    written = frame(1000)
    written.to_csv(f"{base}/table.csv", index=False, **storage)
    written.to_csv(f"{base}/table.csv.gz", index=False, **storage)
    written.to_parquet(f"{base}/table.parquet", **storage)
    for read in (
        pandas.read_csv(f"{base}/table.csv", **storage),
        pandas.read_csv(f"{base}/table.csv.gz", **storage),
        pandas.read_parquet(f"{base}/table.parquet", **storage),
    ):
        pandas.testing.assert_frame_equal(read, written, check_dtype=False)
    columns = pandas.read_parquet(f"{base}/table.parquet", columns=["number"], **storage)
    assert list(columns.columns) == ["number"] and columns["number"].sum() == 499_500


def test_pyarrow_reads_a_partitioned_dataset(fs, scratch):
    table = pyarrow.table({"year": [2024] * 10 + [2025] * 20, "value": list(range(30))})
    handler = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    partitioning = pyarrow.dataset.partitioning(pyarrow.schema([("year", pyarrow.int64())]), flavor="hive")
    pyarrow.dataset.write_dataset(table, f"/{scratch}/data", filesystem=handler, format="parquet", partitioning=partitioning)
    assert sorted(fs.ls(f"/{scratch}/data", detail=False)) == [f"/{scratch}/data/year=2024", f"/{scratch}/data/year=2025"]
    dataset = pyarrow.dataset.dataset(f"/{scratch}/data", filesystem=fs, format="parquet", partitioning=partitioning)
    assert dataset.count_rows() == 30
    found = dataset.to_table(filter=pyarrow.dataset.field("year") == 2025)
    assert sorted(found["value"].to_pylist()) == list(range(10, 30))


def test_the_footer_of_a_parquet_file_does_not_take_the_file(server, root, scratch):
    columns = {f"c{n}": pyarrow.array(range(n, n + 300_000)) for n in range(8)}
    path = root / scratch / "large.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False, row_group_size=50_000)
    size = path.stat().st_size
    assert size > 16_000_000
    fs = fsspec.filesystem("9p", host=server["9p"])
    before = server.sent()
    with fs.open(f"/{scratch}/large.parquet") as file:
        parquet = pyarrow.parquet.ParquetFile(file)
        assert parquet.metadata.num_rows == 300_000
        footer = server.sent() - before
        assert parquet.read_row_group(3, columns=["c5"])["c5"][0].as_py() == 150_005
    assert footer < 600_000
    assert server.sent() - before < 2_000_000
