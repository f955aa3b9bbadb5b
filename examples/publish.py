#!/usr/bin/env python
"""Publish a trained model on the Hugging Face Hub, as a release: no pickles, no local paths, checked, one commit.

python examples/publish.py --model runs/vadv-embedded --repo_id ORG/NAME --dry_run
python examples/publish.py --model runs/vadv-embedded --repo_id ORG/NAME --private --tag v1
python examples/publish.py --model runs/*/seed-0 --repo_id ORG/{method}-tiny --collection "ORG/Robust encoders"

The exit code is 2 for bad input and 1 if the upload failed; the release folder is kept, and the last line is the
command to repeat, which sends only what the Hub has not got.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_robustcse.errors import Parser, UserError, command


def _parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--model", nargs="+", type=Path, required=True, metavar="DIR", help="checkpoint folders")
    parser.add_argument(
        "--repo_id", required=True, help="OWNER/NAME; for several models with {method}, or {name}, that of the folder"
    )
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--dry_run", action="store_true", help="make and check the release, upload nothing")
    parser.add_argument("--revision", help="branch, made if it is not there (default: main)")
    parser.add_argument("--tag", help="set to the commit, such as v1")
    parser.add_argument("--collection", help="OWNER/TITLE, made if it is not there, or OWNER/SLUG")
    parser.add_argument(
        "--results", nargs="+", default=[], type=Path, metavar="FILE", help="more result files for the card"
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        help="store the weights so; they are computed with in float32 all the same",
    )
    parser.add_argument("--license", help="for the card: identifier on the Hub, such as apache-2.0")
    parser.add_argument("--language", help="for the card: ISO 639 code of the training text, such as en")
    parser.add_argument("--base_model", help="for the card: Hub id of the encoder that training began with")
    parser.add_argument("--tags", nargs="+", default=[], help="for the card")
    parser.add_argument("--message", help="first line of the commit")
    parser.add_argument(
        "--output_dir", type=Path, help="where the release folder goes (default: runs/release-NAME; several: inside)"
    )
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    # Imports here: a usage error need not load torch.
    from transformers.utils import logging

    from hf_robustcse.evaluation.embedders import saved_method
    from hf_robustcse.evaluation.results import command_line
    from hf_robustcse.publish.folder import build_release
    from hf_robustcse.publish.hub import check_names, preflight, upload
    from hf_robustcse.publish.verify import verify

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    again = "python " + command_line(["examples/publish.py", *(sys.argv[1:] if argv is None else argv)])
    targets: dict[str, Path] = {}
    for model in options.model:
        method = (saved_method(str(model)) or "").replace("+", "-") if model.is_dir() else ""
        repo_id = options.repo_id.replace("{method}", method).replace("{name}", model.absolute().name)
        if repo_id in targets:
            raise UserError(f"{targets[repo_id]} and {model} would both be {repo_id}: use {{method}} or {{name}}")
        check_names(repo_id, options.revision, options.tag, options.collection)
        targets[repo_id] = model
    if not options.dry_run:  # all of them, before the first is made
        targets = {
            preflight(name, private=options.private, revision=options.revision, retry=again): model
            for name, model in targets.items()
        }
    for repo_id, model in targets.items():
        name = repo_id.split("/")[-1]
        folder = options.output_dir or Path("runs") / f"release-{name}"
        if options.output_dir and len(targets) > 1:
            folder = options.output_dir / name
        elif not options.output_dir and folder.resolve() == model.resolve():  # a release that is released again
            folder = folder.with_name(f"{folder.name}-2")
        about = {"license": options.license, "language": options.language, "base_model": options.base_model}
        release = build_release(
            model, folder, repo_id=repo_id, results=options.results, dtype=options.dtype, extra_tags=options.tags,
            card=about,
        )  # fmt: skip
        print(f"{model} -> {folder}", flush=True)
        for warning in release.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        checked = verify(folder)
        for file, size in release.files.items():
            print(f"  {size:>12,}  {file}")
        print(f"  {sum(release.files.values()):>12,}  bytes in {len(release.files)} files")
        print(
            f"sentence-transformers alone loads it, and embeds as here up to {checked['max_abs_difference']:.1g}",
            f"stored as {release.weights['dtype']}, which moves an entry of an embedding by at most "
            f"{release.weights['max_abs_difference']:.1g}",
            sep="\n",
        )
        if options.dry_run:
            head = (folder / "README.md").read_text(encoding="utf-8").splitlines()[:30]
            print("README.md begins:", *(f"  {line}" for line in head), sep="\n")
            continue
        commit = upload(
            folder, repo_id, private=options.private or None, revision=options.revision, tag=options.tag,
            collection=options.collection, message=options.message or f"Release of {release.method}", retry=again,
        )  # fmt: skip
        print(f"pushed: {commit.commit_url}")
        of = f', revision="{options.revision}"' if options.revision else ""
        print(f'load it: SentenceTransformer("{repo_id}"{of})')
    if options.dry_run:
        print("nothing was uploaded: the same command without --dry_run does that")


if __name__ == "__main__":
    main()
