"""Every regular expression of the package and the ways in which it is used.

They are found by reading the source, so that none can be forgotten. What cannot be found this way
is listed as a problem, for the test that calls this to fail.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "bsmeta"

# Functions of `re`, and at which argument their flags are; those of them that patterns have, too.
_FLAGS_AT = {
    "compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2,
    "split": 3, "sub": 4, "subn": 4,
}  # fmt: skip
METHODS = frozenset(_FLAGS_AT) - {"compile"}
_HARMLESS = {"escape", "Pattern", "Match", "error"}
_ESCAPED = {
    "search",
    "fullmatch",
    "finditer",
}  # how a pattern may be used that is given to a function


@dataclass(frozen=True)
class Use:
    """A pattern, and one way in which it is used.

    Attributes:
        place: File below the package, and line.
        method: A method of patterns.
        most: Maximal number of characters read, if the call limits it.
    """

    place: str
    pattern: re.Pattern[Any]
    method: str
    most: int | None = None


@dataclass
class Uses:
    """The uses of all patterns, and the reasons for uses that cannot be found."""

    uses: list[Use] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class UnknownValueError(Exception):
    """An expression has a name with a value known only at run time."""


class Module:
    """The source of a module of the package."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(PACKAGE).as_posix()
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.nodes = list(ast.walk(self.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        parts = ["bsmeta", *Path(self.file).with_suffix("").parts]
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def namespace(self) -> dict[str, Any]:
        return dict(vars(importlib.import_module(self.name)))

    def function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        """Returns the outermost function around a node."""
        outermost = None
        while node in self.parents:
            node = self.parents[node]
            outermost = node if isinstance(node, ast.FunctionDef) else outermost
        return outermost

    @cached_property
    def imported(self) -> set[tuple[str | None, str]]:
        """Returns the modules and names of its `from` imports."""
        imports = [node for node in self.nodes if isinstance(node, ast.ImportFrom)]
        return {(node.module, alias.name) for node in imports for alias in node.names}

    def place(self, node: ast.AST) -> str:
        return f"{self.file}:{node.lineno}"  # type: ignore[attr-defined]


def read_modules() -> list[Module]:
    return [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def find_uses(modules: Sequence[Module], values: Mapping[str, Mapping[str, Sequence[Any]]]) -> Uses:
    """Finds all patterns.

    Args:
        values: By file, examples of the values that its functions get when they make patterns: of
            each parameter that a pattern depends on.
    """
    found = Uses()
    for module in modules:
        found.problems += _other_ways(module)
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            made = _pattern_and_flags(node)
            if made is None:
                continue
            pattern, flags, method = made
            if method == "compile":
                uses = _uses_of_name(modules, module, node)
                if not uses:
                    found.problems.append(f"{module.place(node)}: no use of this pattern is found")
            else:
                uses = {(method, None)}
            try:
                patterns = list(_compiled(module, pattern, flags, values.get(module.file, {})))
            except UnknownValueError as error:
                found.problems.append(f"{module.place(node)}: {error}")
                continue
            found.uses += [
                Use(module.place(node), pattern, method, most)
                for pattern in patterns
                for method, most in sorted(uses, key=str)
            ]
    return found


def _other_ways(module: Module) -> Iterator[str]:
    """Yields uses of regular expressions unknown to `find_uses`."""
    for node in module.nodes:
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names if alias.name != "re" or alias.asname]
                if {name.split(".")[0] for name in names} & {"re", "regex", "re2"}:
                    yield f"{module.place(node)}: expected `import re`"
            case ast.ImportFrom(module="re" | "regex" | "re2"):
                yield f"{module.place(node)}: expected `import re`"
            case ast.Attribute(value=ast.Name(id="re"), attr=name):
                is_known = name in _FLAGS_AT or name in _HARMLESS or name.isupper()
                if not is_known:
                    yield f"{module.place(node)}: re.{name} is not examined"
                elif name in _FLAGS_AT and not isinstance(module.parents[node], ast.Call):
                    yield f"{module.place(node)}: re.{name} is not called here"


def _pattern_and_flags(call: ast.Call) -> tuple[ast.expr, ast.expr | None, str] | None:
    """Returns pattern, flags (as expressions) and method of a call; None without a pattern."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=name) if name in _FLAGS_AT:
            at = _FLAGS_AT[name]
            flags = call.args[at] if len(call.args) > at else keywords.get("flags")
            return call.args[0], flags, name
        case ast.Attribute(attr="Meta") if "pattern" in keywords:  # of msgspec, which searches
            return keywords["pattern"], None, "search"
    return None


def _compiled(
    module: Module,
    pattern: ast.expr,
    flags: ast.expr | None,
    values: Mapping[str, Sequence[Any]],
) -> Iterator[re.Pattern[Any]]:
    (flag,) = _values(module, flags, module.namespace, values) if flags is not None else (0,)
    for value in _values(module, pattern, module.namespace, values):
        yield value if isinstance(value, re.Pattern) else re.compile(value, flag)


def _values(
    module: Module,
    expression: ast.expr,
    names: dict[str, Any],
    values: Mapping[str, Sequence[Any]],
) -> Iterator[Any]:
    """Yields the values that an expression can have.

    Raises:
        UnknownValueError: If only a run knows them.
    """
    try:
        value = eval(ast.unparse(expression), names)
    except NameError as error:
        function = module.function_of(expression)
        if function is None:
            raise UnknownValueError(str(error)) from error
        for bound in _bind(module, function, error.name, names, values):
            yield from _values(module, expression, bound, values)
    except (AttributeError, TypeError) as error:
        raise UnknownValueError(f"{ast.unparse(expression)}: {error}") from error
    else:
        yield value


def _bind(
    module: Module,
    function: ast.FunctionDef,
    name: str,
    names: dict[str, Any],
    values: Mapping[str, Sequence[Any]],
) -> Iterator[dict[str, Any]]:
    """Yields the names with a value for one more, which a function assigns or loops over."""
    if name in values:
        for value in values[name]:
            yield {**names, name: value}
        return
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[target], value=source) if name in _targets(target):
                for value in _values(module, source, names, values):
                    yield _assigned(target, value, names)
                return
            case (
                ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source)
            ) if name in _targets(target):
                for iterable in _values(module, source, names, values):
                    for value in iterable:
                        yield _assigned(target, value, names)
                return
    raise UnknownValueError(
        f"the value of {name} in a pattern is not known; add examples of it to the test"
    )


def _targets(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _assigned(target: ast.expr, value: Any, names: dict[str, Any]) -> dict[str, Any]:
    names = {**names, "__value": value}
    exec(f"{ast.unparse(target)} = __value", names)
    return names


def _uses_of_name(
    modules: Sequence[Module], module: Module, call: ast.Call
) -> set[tuple[str, int | None]]:
    """Returns the uses of a compiled pattern with a name."""
    statement = module.parents[call]
    if not isinstance(statement, ast.Assign):
        return {(method, None) for method in _ESCAPED}
    target = statement.targets[0]
    name = target.id if isinstance(target, ast.Name) else ast.unparse(target).rpartition(".")[2]
    uses: set[tuple[str, int | None]] = set()
    for other in modules:
        if other is not module and (module.name, name) not in other.imported:
            continue
        for node in other.nodes:
            is_name = isinstance(node, ast.Name) and node.id == name
            is_attribute = isinstance(node, ast.Attribute) and node.attr == name
            if (is_name or is_attribute) and isinstance(node.ctx, ast.Load):
                uses |= _uses_at(other, node)
    return uses


def _uses_at(module: Module, node: ast.AST) -> set[tuple[str, int | None]]:
    parent = module.parents[node]
    if not isinstance(parent, ast.Attribute):
        return {(method, None) for method in _ESCAPED}
    if parent.attr in ("pattern", "flags"):
        return set()
    call = module.parents[parent]
    most = None
    if isinstance(call, ast.Call) and len(call.args) == 3 and parent.attr not in ("sub", "subn"):
        try:
            (most,) = _values(module, call.args[2], module.namespace, {})
        except UnknownValueError:
            most = None
    return {(parent.attr, most if isinstance(most, int) else None)}
