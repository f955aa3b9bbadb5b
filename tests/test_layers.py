"""The rooms: each module imports only modules above it in the table."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hf_robustcse"
ROOMS = [
    "errors", "files", "chunks", "functional", "distributed", "modules", "perturb", "packing", "encoder", "mlm",
    "synonyms", "typos", "augmentation", "layout", "chunks", "methods", "losses", "data", "stream", "evaluation",
    "attacks", "report", "cards", "publish", "model", "sentence_transformer", "arguments", "trainer", "runs",
    "ablation", "finetune", "attack_runs", "prefetch", "deploy", "convert", "demo", "quick_help", "cli",
]  # fmt: skip


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_room_and_imports_only_upwards():
    for path in PACKAGE.rglob("*.py"):
        room = room_of(path)
        if room in ("__init__", "assets"):
            continue
        assert room in ROOMS, f"{path} has no room"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hf_robustcse"):
                rest = node.module.split(".")[1:]
                names = rest[:1] or [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name.split(".")[1] for a in node.names if a.name.startswith("hf_robustcse.")]
            for name in names:
                assert ROOMS.index(name) <= ROOMS.index(room), f"{path} imports {name}, which is below {room}"


def test_methods_know_nothing_of_each_other():
    for path in (PACKAGE / "methods").glob("*.py"):
        if path.stem in ("__init__", "base"):
            continue
        source = path.read_text(encoding="utf-8")
        others = {p.stem for p in (PACKAGE / "methods").glob("*.py")} - {"__init__", "base", path.stem}
        assert not [other for other in others if f"methods.{other}" in source]
        assert "trainer" not in source.lower().replace("the trainer", "")


def test_no_private_imports_of_transformers_and_no_remote_code():
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "examples").glob("*.py")]:
        source = path.read_text(encoding="utf-8")
        assert "trust_remote_code" not in source and "import pickle" not in source, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers"):
                assert not [a.name for a in node.names if a.name.startswith("_")], path
