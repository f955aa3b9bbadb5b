"""Search in a text file by meaning: build an index once, then ask it.

    python examples/search_index.py --corpus sentences.txt --model my-model --index_dir index
    python examples/search_index.py --index_dir index --query "a dog runs in the park"

The embeddings are written by the same code as `hf-robustcse encode`, in constant memory; the index is usearch's HNSW
graph (`pip install "hf_robustcse[search]"`). Building it measures how many of the ten nearest neighbours of an exact
search it finds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import version_of, whole_folder, write_json

TABLE, GRAPH, ABOUT = "texts.parquet", "index.usearch", "index.json"
RECALL_QUERIES = 1000
BREADTHS = (64, 128, 256, 512)


@command
def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--index_dir", required=True, help="folder of the index")
    build = parser.add_argument_group("to build")
    build.add_argument("--corpus", help="texts, as for hf-robustcse encode")
    build.add_argument("--model", help="checkpoint folder or Hub id")
    build.add_argument("--text_column", help="the corpus' column of the text")
    build.add_argument("--num_processes", type=int, default=1, help="processes that encode (default: %(default)s)")
    build.add_argument("--connectivity", type=int, default=16, help="neighbours of a node (default: %(default)s)")
    build.add_argument("--expansion_add", type=int, default=128, help="breadth of building (default: %(default)s)")
    build.add_argument("--recall_file", help="queries of the recall (default: 1000 random texts of the corpus)")
    build.add_argument("--recall_column", help="its column of the text")
    search = parser.add_argument_group("to search")
    search.add_argument("--query", nargs="+", default=[], help="texts to look for")
    search.add_argument("--query_file", help="a file of them")
    search.add_argument("--top", type=int, default=10, help="texts to show (default: %(default)s)")
    parser.add_argument("--expansion_search", type=int, default=256, help="breadth of searching (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        import usearch.index  # noqa: F401
    except ImportError:
        raise UserError('usearch is not installed: pip install "hf_robustcse[search]"') from None
    from hf_robustcse.data import stream_texts  # here, as all that loads torch: help need not wait for it

    folder = Path(args.index_dir).expanduser()
    for option, least, most in (
        ("top", 1, 10_000), ("connectivity", 2, 1024), ("expansion_add", 1, 100_000), ("expansion_search", 1, 100_000),
    ):  # fmt: skip
        if not least <= (value := getattr(args, option)) <= most:
            raise UserError(f"--{option} must be between {least} and {most}, not {value}")
    if bool(args.corpus) != bool(args.model):
        raise UserError("to build an index give both --corpus and --model; to search leave both out")
    if args.corpus:
        if folder.exists() and not (folder / ABOUT).is_file():
            raise UserError(f"--index_dir {folder} exists and is no index: name another folder")
        build_index(folder, args)
    queries = [*args.query, *(stream_texts(args.query_file) if args.query_file else ())]
    if queries:
        show(folder, queries, args)
    elif args.corpus:
        print(f"next: python examples/search_index.py --index_dir {args.index_dir} --query TEXT")
    else:
        raise UserError("nothing to do: add --query TEXT, or --corpus FILE and --model MODEL")


def build_index(folder: Path, args: Any) -> None:
    """Encode the corpus, add every row to the graph, measure its recall, put the folder in its place."""
    import pyarrow.parquet as pq
    from usearch.index import Index

    from hf_robustcse.data import stream_texts
    from hf_robustcse.deploy.encode import encode_file
    from hf_robustcse.evaluation.embedders import load_embedder

    queries = list(stream_texts(args.recall_file, args.recall_column)) if args.recall_file else None
    if queries == []:
        raise UserError(f"--recall_file {args.recall_file} has no rows")
    with whole_folder(folder) as new:
        new.mkdir()
        started = time.perf_counter()
        done = encode_file(
            args.model, args.corpus, new / TABLE, text_column=args.text_column, num_processes=args.num_processes,
            normalize=True,
        )  # fmt: skip
        encoded = time.perf_counter()
        index = Index(
            ndim=done["dimension"], metric="cos", dtype="f32", connectivity=args.connectivity,
            expansion_add=args.expansion_add, expansion_search=args.expansion_search,
        )  # fmt: skip
        table = pq.ParquetFile(new / TABLE)
        with tqdm(total=done["rows"], unit=" rows", desc="indexing", disable=None) as bar:
            for batch in table.iter_batches(columns=["row", "embedding"]):
                index.add(batch["row"].to_numpy(), _rows(batch["embedding"], done["dimension"]))
                bar.update(len(batch))
        indexed = time.perf_counter()
        index.save(str(new / GRAPH))
        if queries is None:
            rng = np.random.default_rng(0)
            rows = np.sort(rng.choice(done["rows"], min(RECALL_QUERIES, done["rows"]), replace=False))
            vectors = np.stack([index.get(int(row)) for row in rows])
        else:
            vectors = load_embedder(args.model)(queries)
        about = {
            "model": str(args.model),
            "rows": done["rows"],
            "dimension": done["dimension"],
            "connectivity": args.connectivity,
            "expansion_add": args.expansion_add,
            "recall_queries": "texts of the corpus" if queries is None else Path(args.recall_file).name,
            **measure_recall(index, vectors, sorted({*BREADTHS, args.expansion_search})),
            "encode_seconds": round(encoded - started, 2),
            "index_seconds": round(indexed - encoded, 2),
            "index_bytes": (new / GRAPH).stat().st_size,
            "usearch": version_of("usearch"),
        }
        write_json(new / ABOUT, about)
    print(
        f"{about['rows']:,} texts: encoded in {about['encode_seconds']} s, indexed in {about['index_seconds']} s. "
        f"Against an exact search ({about['exact_ms']:.2f} ms a query), over {about['queries']} queries:"
    )
    for breadth, result in about["expansion_search"].items():
        print(f"--expansion_search {breadth}: recall@10 {result['recall_at_10']:.4f}, {result['ms']:.2f} ms a query")


def _rows(column: Any, width: int) -> np.ndarray:
    return column.flatten().to_numpy().reshape(-1, width)


def measure_recall(index: Any, vectors: np.ndarray, breadths: Sequence[int]) -> dict[str, Any]:
    """For each breadth the share of the ten nearest neighbours that the graph finds, and milliseconds a query."""
    count = min(10, len(index))

    def search(exact: bool) -> tuple[np.ndarray, float]:
        started = time.perf_counter()
        keys = index.search(vectors, count, exact=exact).keys.reshape(len(vectors), count)
        return keys, round(1000 * (time.perf_counter() - started) / len(vectors), 4)

    before = index.expansion_search
    true, exact_ms = search(exact=True)
    results = {}
    for breadth in breadths:
        index.expansion_search = breadth
        found, ms = search(exact=False)
        hits = sum(len(np.intersect1d(*rows)) for rows in zip(found, true, strict=True))
        results[str(breadth)] = {"recall_at_10": hits / true.size, "ms": ms}
    index.expansion_search = before
    return {"queries": len(vectors), "exact_ms": exact_ms, "expansion_search": results}


def show(folder: Path, queries: list[str], args: Any) -> None:
    """Print the nearest texts of each query with their cosines."""
    import pyarrow.parquet as pq
    from usearch.index import Index

    from hf_robustcse.evaluation.embedders import load_embedder

    try:
        model = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["model"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--index_dir {folder} holds no index: build one with --corpus and --model") from None
    if missing := [name for name in (GRAPH, TABLE) if not (folder / name).is_file()]:
        raise UserError(f"--index_dir {folder} has no {missing[0]}: build the index again")
    try:
        index = Index.restore(str(folder / GRAPH), view=True, expansion_search=args.expansion_search)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{folder / GRAPH} cannot be read ({error}): build the index again") from None
    vectors = load_embedder(model)(queries)
    texts = pq.read_table(folder / TABLE, columns=["text"], memory_map=True)["text"]
    for query, vector in zip(queries, vectors, strict=True):
        print(query)
        for match in index.search(vector, min(args.top, len(index))):
            print(f"  {1 - match.distance:.3f}  [{match.key}] {texts[int(match.key)].as_py()}")


if __name__ == "__main__":
    main()
