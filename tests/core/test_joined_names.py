"""Every name that the package joins to a folder is its own, or passes `join_inside`.

Which of them come from outside cannot be seen in the code, so each is listed here, with the reason
why it is harmless. A new one fails the test until somebody has thought about it: if the name comes
from a listing, an archive, a manifest or any other file, it belongs in `join_inside`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "bsmeta"

RETURN_PATHS = {"Path", "PurePosixPath", "resolve", "absolute", "expanduser", "with_name"}
JOINING_CALLS = {"joinpath", "with_name", "with_stem", "os.path.join"}

JOINS = {
    "annotate/command.py": {
        "output / FOLDER / config.executor": "one of the choices of the key",
    },
    "annotate/duplicates/search.py": {"held_out_folder / f'{file.xxh3}.signatures'": "a hash"},
    "annotate/duplicates/signatures.py": {
        "path.with_name(f'{path.name}{PART_SUFFIX}')": "beside a path",
    },
    "annotate/links.py": {"folder / name": "three constant names"},
    "annotate/inputs/sources.py": {"os.path.join(entry, name)": "a listing of the folder itself"},
    "api/runs.py": {"self.path / name": "constant names"},
    "cli.py": {"folder / name": "constant names"},
    "config/checks/model_shape.py": {
        "Path(name, 'config.json')": "a constant below the user's path",
    },
    "config/composing/command_line.py": {"path / f'{stem}.yaml'": "named on the command line"},
    "config/data.py": {
        "os.path.join(folder, entry)":
            "the user's keys",
    },
    "config/composing/from_file.py": {
        "folder / name": "named by the user's own files",
        "self.folder / name": "named by the user's own files",
    },
    "config/composing/hydra_files.py": {
        "Path(self.path) / self._normalize_file_name(config_path)": "named by the user's own files",
        "folder / name": "named by the schema",
    },
    "config/run_location.py": {
        "Path(config.staging_dir) / name_local_folder(config.out_dir)":
            "a hash after the user's address",
    },
    "config/composing/schema_choice.py": {
        "folder / f'{name}.yaml'": "named by the user's own files",
    },
    "core/files.py": {
        "path.with_name(f'.{uuid.uuid4().hex}{path.suffix}')": "beside a path",
        "path.with_name(f'{path.name}.part')": "beside a path",
        "folder / name": "join_inside itself",
        "path.with_name(f'{path.name}.lock')": "beside a path",
    },
    "core/permissions.py": {"folder / f'.{uuid.uuid4().hex}'": "a random name"},
    "data/io/cache.py": {
        "self.folder / f'{readable}-{key.hexdigest()}.{kind}.npz'":
            "a base name, printable and short",
    },
    "data/io/file_sets.py": {"path.with_name(f'{path.name}.part')": "beside a path"},
    "data/io/remote/hub.py": {
        "folder / _name_listing(pattern, pattern.revision)": "a hash after the URL's owner--name",
        "folder / _name_listing(pattern, commit)": "a hash after the URL's owner--name",
    },
    "data/io/remote/remote_file.py": {
        "self._folder / 'blocks' / name[:2] / name": "a hash",
        "self._folder / 'blocks' / name[:2]": "a hash",
        "locks / f'{int(path.name, 16) % NUM_LOCK_FILES}.lock'": "a number",
    },
    "data/io/shards.py": {
        "cache.folder / 'samples' / f'{name}.npz'": "a hash",
        "os.path.join(entry, name)": "a listing of the folder itself",
        "os.path.join(real_folders[folder], name)": "a local path, taken apart",
    },
    "data/stream/lost_text.py": {
        "os.path.join(name, files[0])": "a listing of the folder itself",
    },
    "data/prepare.py": {
        "out.with_name(f'.{out.name}.{os.getpid()}.partial')": "beside a path",
        "folder / _name_stream_file(stream)": "a number",
        "self._folder / _name_stream_file(stream)": "a number",
    },
    "data/stage.py": {"out.with_name(f'{out.name}.part')": "beside a path"},
    "data/table/records.py": {
        "path.with_name(f'{path.name}.part')": "beside a path",
        "path.with_name(f'{path.name}.part.json')": "beside a path",
    },
    "report/drawing.py": {"folder / f'{name}.{ending}'": "names in the code"},
    "report/page.py": {
        "folder / name": "names in the code",
        "folder / json_name": "names in the code",
        "folder / markdown_name": "names in the code",
    },
    "studies/cloze.py": {
        "folder / f'{name}.jsonl'": "names in the code",
        "folder / f'{name}.yaml'": "names in the code",
    },
    "studies/measuring.py": {"run.folder / f'checkpoint-{step}step'": "a number"},
    "studies/runs.py": {
        (
            "Path(study.out_dir) / f'measured-{hash_values(select_measure_settings(study))[:8]}'"
        ): "a hash",
        "locate_results(study) / f'{arm}-seed{seed}.npz'": "checked by the study's configuration",
        "ROOT / 'experiments' / study.launch": "the study's file says what to run",
        "stable.folder / f'checkpoint-{branch_at}step'": "a number",
        "stable.folder.resolve() / f'checkpoint-{arm.branch_at}step'": "a number",
        "folder / 'runs' / f'{arm}-seed{seed}'": "checked by the study's configuration",
        "run.folder.with_name(f'{run.folder.name}.log')": "beside a path",
    },
    "studies/task_scores.py": {
        "Path(study.out_dir) / f'downstream-{settings_hash[:8]}'": "a hash",
        "folder / f'{arm}-seed{seed}.tasks.json'": "checked by the study's configuration",
    },
    "tasks/causal_lm/checks.py": {
        "os.path.join(path, '*')": "for a message",
        "os.path.join(held_out, example)": "for a message",
    },
    "tasks/checkpoints.py": {
        "folder / '-'.join(parts)": "begins with a constant; base names of the user's paths",
        "parent / names[-1]": "begins with a constant; base names of the user's paths",
        "parent / name": "begins with a constant; base names of the user's paths",
    },
    "tasks/classification/analysis.py": {
        "predictions.with_name(f'{name}_analysis')": "beside a path",
    },
    "tasks/classification/prediction_files.py": {
        "predictions.with_name(predictions.name.removesuffix(PREDICTIONS_SUFFIX) + STATS_SUFFIX)":
            "beside a path",
    },
    "tasks/disambiguation/config_script.py": {
        "folder.with_name(f'{folder.name}.building.lock')": "beside a path",
    },
    "tasks/classification/evaluate.py": {"folder / f'{name}_{ending}'": "names in the code"},
    "tasks/classification/examples.py": {
        "csv.with_name(f'{name}.sqlite')": "beside a path",
        "database.with_name(f'{database.name}-journal')": "beside a path",
    },
    "tasks/classification/systems.py": {"self._folder / method": "names in the code"},
    "tasks/disambiguation/array_folder.py": {
        "self._folder / entry.file": "checked when the folder was opened",
        "self._folder / file_name": "names in the code",
    },
    "tasks/disambiguation/converter.py": {
        "PurePosixPath(str(self.get('data_config.data_dir', 'data')), name)":
            "the user's keys, shown before they are used",
    },
    "tasks/disambiguation/embeddings.py": {
        "folder / self.hash_settings('frozen', is_masked)": "a hash",
        "folder / self.hash_settings('states', self._trained_layers, is_masked)": "a hash",
        "folder / f'{name}.npy'": "a hash",
        "folder / name": "a hash",
    },
    "tasks/disambiguation/entity_files.py": {
        "folder / name": "names in the code",
        "folder / f'{name}.json'": "names in the code",
        "folder / file": "one of a listing of the folder itself",
        "folder / (vocabulary or default_vocabulary)": "one of a listing of the folder itself",
    },
    "tasks/disambiguation/prep.py": {
        "folder.with_name(f'{folder.name}.work')": "beside a path",
        "folder.with_name(f'{folder.name}-{_hash_key(key)}')": "a hash",
        "work / f'{name}.arrow'": "names in the code",
    },
    "tasks/spelling/config.py": {"os.path.join(folder, CORRECTION)": "a constant name"},
    "tasks/spelling/evaluate.py": {
        "folder / CORRECTION_TASK / group / split": "a listing of the folder itself",
        "folder / task": "the name of the task",
        "folder / CORRECTION_TASK / group": "a listing of the folder itself",
    },
    "tasks/spelling/samples.py": {
        "Path(config.store_dir) / _hash_key(key)": "a hash",
        "self._folder / f'lengths-{_hash_key(key)}.npy'": "a hash",
        "self._folder / f'counts-{_hash_key(key)}'": "a hash",
    },
    "models/pretrained.py": {
        "model / file": "checked by read_manifest",
    },
    "training/checkpoints/checkpoint.py": {
        "out_dir / f'tmp-{name_folder(step)}'": "a number",
        "out_dir / name_folder(step)": "a number",
        "self.folder / file": "files that were just written there",
        "self.folder / name": "constant names",
        "checkpoint.folder / file": "checked by read_manifest",
        "folder / part": "constant names",
        "out_dir / f'superseded-{checkpoint.folder.name}'": "a number",
        "path.with_name(f'{path.name}.{number}')": "beside a path",
    },
    "training/ranks/distributed_op.py": {
        "Path(build_folder, builder.NAME, f'{builder.NAME}.so')": "names in a library's code",
        "Path(get_default_build_root()) / file": "a constant",
        "Path(os.environ['TORCH_EXTENSIONS_DIR']) / file": "a constant",
        "environment_folder / file": "a constant",
    },
    "training/guards.py": {
        "self.folder / f'nonfinite-step{result.step}-rank{self.rank}.json'": "numbers",
    },
    "training/run_folder/folder.py": {
        "self.path / name": "names in the code",
    },
    "training/run_folder/logs.py": {"folder / name": "a number"},
    "training/ranks/shared_folder.py": {
        "folder / f'{TOKEN}{secrets.token_hex(8)}'": "drawn here",
        "folder / f'{TOKEN}{processes.broadcast(secrets.token_hex(8))}'": "drawn by rank 0",
        "token.with_name(f'{token.name}-{rank}')": "a number",
        "folder / name": "drawn by another rank",
    },
    "quick/command.py": {"folder / name": "one of two constants"},
    "quick/folder.py": {"folder / name": "a constant, or a name in this folder"},
    "quick/training.py": {"folder / name": "one of the constants of the module"},
    "ready/building.py": {
        "folder.with_name(f'.{config.target}.lock')": "one of the choices of the key",
        "run_folder.parent / _DATA / f'{run_folder.name}.log'": "a constant name",
    },
    "ready/models.py": {
        "folder / task": "one of the choices of the key",
        "folder / task / name": "constant names",
        "locate_user_cache() / 'ready' / f'{target}-v{FORMAT}'": "one of the choices of the key",
    },
    "ready/paragraphs.py": {
        "PAGES / f'c4-en-html_cc-main-2019-18_pq00-{number:03d}.jsonl.gz'": "a number",
    },
    "training/checkpoints/rng.py": {
        "folder / 'rng' / f'rank{rank}.pt'": "a number",
    },
    "training/run_folder/local_copy.py": {
        "locate_user_cache() / 'runs' / name_local_folder(self.url)":
            "a hash after the user's address",
        "self.folder / folder": "checkpoint-{step}step, or a constant",
        "self.folder / log": "a pattern without slashes",
        "self.folder / name": "checked by read_manifest",
        "self.folder / path": "checkpoint-{step}step, and a constant",
        "self.folder / self._checkpoint": "checkpoint-{step}step",
    },
    "training/run_folder/store.py": {
        "saved.folder.with_name(f'tmp-{saved.folder.name}-deleted')": "beside a path",
    },
    "training/run_folder/bucket_store.py": {
        "saved.folder / file": "checked by read_manifest",
        "self.folder / folder": "checkpoint-{step}step",
        "self.folder / name_folder(step)": "a number",
        "self.folder / folder / file": "checkpoint-{step}step; checked by read_manifest",
        "self.folder / log": "a pattern without slashes",
        "self.folder / name": "files of the folder itself; checkpoint-{step}step and a constant",
    },
    "training/saving.py": {
        "folder.with_name(f'.tmp-{folder.name}')": "beside a path",
        "folder / part": "constant names",
    },
    "training/profile.py": {
        "folder / PROFILE_FOLDER / f'steps-{self._first}-{self._last}-rank{rank}.json'": "numbers",
    },
    "training/watchdog.py": {
        "out_dir / f'stacks-rank{self._processes.rank}.txt'": "a number",
    },
}  # fmt: skip
"""Module -> the names that are joined there without `join_inside`, each with its reason."""

GATED = {
    "annotate/shard.py": "tests/annotate/test_shard.py",
    "core/model_files.py": "tests/core/test_model_files.py",
    "data/io/archives.py": "tests/faults/test_archives.py",
    "data/io/file_sets.py": "tests/data/test_hostile_names.py",
    "data/stage.py": "tests/data/test_hostile_names.py",
    "data/table/store.py": "tests/data/table/test_store.py",
    "models/manifest.py": "tests/models/test_manifest.py",
    "tasks/causal_lm/generation/attribute_mode.py": (
        "tests/tasks/causal_lm/generation/test_attribute_mode.py"
    ),
    "tasks/disambiguation/array_folder.py": "tests/tasks/disambiguation/test_array_folder.py",
    "training/run_folder/local_copy.py": "tests/training/run_folder/test_local_copy.py",
}
"""Module that calls `join_inside` -> the test that feeds it `HOSTILE_NAMES`."""


class PathNames:
    """The names in a module that hold paths: by their annotations, and by what is assigned."""

    def __init__(self, tree: ast.AST) -> None:
        self._names = {
            ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else node.arg
            for node in ast.walk(tree)
            if isinstance(node, (ast.AnnAssign, ast.arg))
            and node.annotation is not None
            and "Path" in ast.unparse(node.annotation)
        }
        size = -1
        while size < len(self._names):  # an assignment may come before its source is known
            size = len(self._names)
            self._names |= {
                ast.unparse(target)
                for node in ast.walk(tree)
                if isinstance(node, ast.Assign) and self.is_path(node.value)
                for target in node.targets
            }

    def is_path(self, node: ast.expr) -> bool:
        """Whether an expression is a path, as far as this module shows it."""
        if isinstance(node, ast.Call):
            return ast.unparse(node.func).rpartition(".")[2] in RETURN_PATHS
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Div) and (is_text(node.right) or self.is_path(node.left))
        text = ast.unparse(node)
        last = text.rpartition(".")[2]
        return text in self._names or last.lstrip("_") in {*self._names, "parent", "folder"}


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a string, so that a division by it joins a path."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_constant(node: ast.expr) -> bool:
    """Whether a name stands in the code: a literal, a constant, or an f-string of both."""
    if isinstance(node, ast.JoinedStr):
        return all(is_constant(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return is_constant(node.value)
    if isinstance(node, ast.IfExp):
        return is_constant(node.body) and is_constant(node.orelse)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node).rpartition(".")[2].lstrip("_").isupper()
    return isinstance(node, ast.Constant)


def list_joins(tree: ast.AST) -> Iterator[str]:
    """Yields the expressions that join a name to a path, other than a constant name."""
    paths = PathNames(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if paths.is_path(node) and not is_constant(node.right):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_joining = name in JOINING_CALLS or name.rpartition(".")[2] in JOINING_CALLS
            is_joining |= name in RETURN_PATHS and len(node.args) > 1
            if is_joining and not all(map(is_constant, node.args)):
                yield ast.unparse(node)


def list_modules() -> Iterator[tuple[str, ast.AST]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.long
def test_every_joined_name_is_listed() -> None:
    unlisted, listed_for_nothing = [], []
    for module, tree in list_modules():
        expressions = set(list_joins(tree))
        listed = JOINS.get(module, {}).keys()
        unlisted += [f"{module}: {expression}" for expression in sorted(expressions - listed)]
        listed_for_nothing += [f"{module}: {expression}" for expression in listed - expressions]
    assert unlisted == [], "join names from outside by path_inside, or list them with the reason"
    assert listed_for_nothing == []


def test_every_caller_of_the_gate_is_fed_hostile_names() -> None:
    callers = {
        module
        for module, tree in list_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "join_inside"
    }
    assert callers - {"core/files.py"} == GATED.keys()
    for test in GATED.values():
        assert "HOSTILE_NAMES" in (REPOSITORY / test).read_text(encoding="utf-8"), test


def test_joins_of_every_form_are_detected() -> None:
    source = """
def write(out: Path, name: str, count: float) -> None:
    folder = out / 'a'
    text = (folder / name).read_text()
    other = Path(x).resolve() / f'{name}.txt'
    joined = os.path.join(folder, name)
    beside = folder.with_name(name)
    below = self._folder / entry['file']
    share = count / total
    constant = out / NAME / f'{NAME}.json'
"""
    assert sorted(list_joins(ast.parse(source))) == [
        "Path(x).resolve() / f'{name}.txt'",
        "folder / name",
        "folder.with_name(name)",
        "os.path.join(folder, name)",
        "self._folder / entry['file']",
    ]
