"""The kinds of mutants: what a piece of Python or JavaScript may be replaced by."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple


class Edit(NamedTuple):
    """One replacement in a file.

    Attributes
    ----------
    begin, end : of what is replaced, in bytes.
    code : what is put there.
    statement : the line on which the statement begins, from 1.
    """

    kind: str
    begin: int
    end: int
    code: str
    statement: int


MOVED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
}  # fmt: skip
EXCHANGED: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(), ast.Pow: ast.Mult(), ast.BitAnd: ast.BitOr(), ast.BitOr: ast.BitAnd(),
}  # fmt: skip
NAMES = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax", "sum": "mean"}
NAMES |= {"floor": "ceil"} | {other: name for name, other in NAMES.items()}
UNSEEN_FIELDS = {"annotation", "returns", "decorator_list", "bases"}
UNSEEN_FUNCTIONS = {"__repr__", "__str__"}
UNSEEN_CALLS = re.compile(r"^(_?log|logger|logging|warnings|console|typer|TypeVar|cast)\b")
UNSEEN_NAMES = {"__all__", "__slots__", "__doc__"}
UNSEEN_ARGUMENTS = {
    "strict",
    "write",
    "encoding",
    "errors",
    "help",
    "description",
    "metavar",
    "thread_name_prefix",
    "title",
    "name",
}
"""Of calls: they guard against mistakes of this code, depend on the machine or are words."""
TEXT = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)

Required = dict[str, set[str]]
"""The arguments that have no default, by the name of what is called."""


def required_arguments(paths: Iterable[Path]) -> Required:
    """Return what the functions and classes of some files cannot be called without."""
    required: Required = defaultdict(set)
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_bytes()))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            places = node.args.posonlyargs + node.args.args
            places = places[: len(places) - len(node.args.defaults)]
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            places += [argument for argument, default in named if default is None]
            required[node.name] |= {argument.arg for argument in places}
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not one.value]
            required[node.name] |= {ast.unparse(field.target) for field in fields}
    return required


def visible(node: ast.AST, statement: int = 1) -> Iterator[tuple[ast.AST, int]]:
    """Walk through what a test could see, with the lines on which statements begin."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.FunctionDef(name=name) if name in UNSEEN_FUNCTIONS:
            return
        case ast.Call() | ast.Expr() if UNSEEN_CALLS.match(ast.unparse(node)):
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name in UNSEEN_NAMES:
            return
        case ast.keyword(arg=name) if name in UNSEEN_ARGUMENTS:
            return
        case ast.stmt():
            statement = node.lineno
    yield node, statement
    for field, value in ast.iter_fields(node):
        if field in UNSEEN_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            is_place = isinstance(node, ast.Subscript) and isinstance(child, ast.Constant)
            if isinstance(child, ast.AST) and not is_place:  # another place mostly fails at once
                yield from visible(child, statement)


def changed(node: ast.AST, **fields: object) -> str:
    """Return the code of a node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.unparse(other)


def without(values: Sequence[ast.AST | None], place: int) -> list[ast.AST | None]:
    """Return a list that lacks one value."""
    return [*values[:place], *values[place + 1 :]]


class Closed(NamedTuple):
    """What no stranger chooses, so that no longer name can come in its place.

    Attributes
    ----------
    texts : members of a `Literal`: code chooses among them after they were checked.
    names : functions, and numbers, arrays and such choices by all of their annotations; names that
        begin with ``n_`` are numbers too.
    open_names : by all of their annotations texts, which are compared with texts before a check.
    """

    texts: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    open_names: frozenset[str] = frozenset()

    def has(self, left: ast.expr, right: ast.expr) -> bool:
        """Tell whether one of two things that are compared is a closed choice."""
        return self._holds(left, right) or self._holds(right, left)

    def _holds(self, node: ast.expr, other: ast.expr) -> bool:
        match node:
            case ast.Constant(value=str(value)):
                is_open = isinstance(other, ast.Name) and other.id in self.open_names
                return value in self.texts and not is_open
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in self.names or name.lstrip("_").startswith("n_")
            case ast.Set(elts=elements) | ast.Tuple(elts=elements) | ast.List(elts=elements):
                return all(self._holds(one, other) for one in elements)
        return isinstance(node, ast.Constant)


NOTHING = Closed()
NO_TEXT = re.compile(
    r"(int|float|bool|np\.\w+|\w*Array|NDArray\[.*\]|(np\.)?dtype\[.*\]|Literal\[.*\])( \| None)?"
)
"""Annotations of numbers, arrays and closed choices."""
NO_TEXT_ELSEWHERE = frozenset({"shape", "dtype", "errno", "st_dev", "__name__"})
"""Names of Python and of other libraries that no stranger chooses."""


def closed_choices(paths: Iterable[Path]) -> Closed:
    """Return what some files choose themselves; see `Closed`."""
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_bytes()))]
    annotations: defaultdict[str, set[str]] = defaultdict(set)
    texts, aliases = set[str](), set[str]()
    functions, assigned, numbers = set[str](), set[str](), {*NO_TEXT_ELSEWHERE}
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(id="Literal"), slice=members):
                found = (one for one in ast.walk(members) if isinstance(one, ast.Constant))
                texts.update(one.value for one in found if isinstance(one.value, str))
            case ast.FunctionDef(name=name, decorator_list=[]):
                functions.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                assigned.add(name)
            case ast.arg(arg=name, annotation=None):
                assigned.add(name)
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                annotations[name].add(ast.unparse(annotation))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                annotations[name].add(ast.unparse(annotation))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() | float())):
                annotations[name].add("int")
            case ast.Assign(
                targets=[ast.Tuple(elts=elements)],
                value=ast.Call(func=ast.Name(id="range")) | ast.Tuple(),
            ):
                constants = [one.id for one in elements if isinstance(one, ast.Name)]
                numbers |= {one for one in constants if one.isupper()}
            case ast.Assign(targets=[ast.Name(id=alias)], value=ast.Subscript() as value):
                aliases |= {alias} if NO_TEXT.fullmatch(ast.unparse(value)) else set()
    closed = {
        name
        for name, found in annotations.items()
        if all(NO_TEXT.fullmatch(one) or one.removesuffix(" | None") in aliases for one in found)
    }
    names = closed | functions - assigned - annotations.keys()
    open_names = {name for name, found in annotations.items() if found <= {"str", "str | None"}}
    return Closed(frozenset(texts), frozenset(names | numbers), frozenset(open_names))


Replacement = tuple[str, ast.expr | ast.stmt, str]
"""A kind, the node to replace, and the code to put there."""


def of_operator(node: ast.AST) -> Iterator[Replacement]:
    """Return what may be there in place of an operator."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in MOVED:
            yield "comparison", node, changed(node, ops=[MOVED[type(operator)]])
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", node, f"({changed(node, op=other)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in EXCHANGED:
            if not is_text(left) and not is_text(right):
                yield "arithmetic", node, f"({changed(node, op=EXCHANGED[type(operator)])})"
        case ast.IfExp(body=body, orelse=other_body):
            yield "branch", node, f"({changed(node, body=other_body, orelse=body)})"


def of_value(node: ast.AST) -> Iterator[Replacement]:
    """Return what may be there in place of a constant, of entries and of bounds."""
    match node:
        case ast.Constant(value=bool(value)):
            yield "true/false", node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, repr(value + 1 if isinstance(value, int) else 2 * value or 1.0)
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            for place in range(len(keys)):
                fewer = {"keys": without(keys, place), "values": without(values, place)}
                yield "entry", node, changed(node, **fewer)
        case ast.Set(elts=elements) if len(elements) > 1:
            for place in range(len(elements)):
                yield "entry", node, changed(node, elts=without(elements, place))
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper) as part) if lower or upper:
            rest = ast.Slice(lower, None, part.step) if upper else ast.Slice()
            yield "slice", node, changed(node, slice=rest)


def of_call(node: ast.AST, required: Required) -> Iterator[Replacement]:
    """Return what may be called in place of a function, and the arguments that may be missing."""
    if not isinstance(node, ast.Call):
        return
    name = ast.unparse(node.func).rpartition(".")[2]
    other = NAMES.get(name)
    if other and (isinstance(node.func, ast.Attribute) or hasattr(builtins, other)):
        yield "function", node.func, ast.unparse(node.func).removesuffix(name) + other
    for place, keyword in enumerate(node.keywords):
        kept = UNSEEN_ARGUMENTS | required.get(name, set())
        if keyword.arg and keyword.arg not in kept:
            yield "argument", node, changed(node, keywords=without(node.keywords, place))


SCOPES = ("read", "review", "write", "admin")
"""Of callers, each with more rights than the one before."""
ENDS = ("startswith", "endswith")


def of_neighbour(node: ast.AST, closed: Closed) -> Iterator[Replacement]:
    """Return what a value next to the right one would pass: one more or less, a longer name.

    A longer name is only where a stranger may choose one: a gallery, a host, a path, an id, a file,
    a field. Code's own choices (``kind == "image"``), numbers and arrays have no such neighbours.
    """
    match node:
        case ast.Compare(left=left, ops=[operator]) if type(operator) in MOVED:
            for other in (ast.Add(), ast.Sub()) if not is_text(left) else ():
                moved = ast.BinOp(left, other, ast.Constant(1))
                yield "off by one", node, changed(node, left=moved)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as operator], comparators=[right]):
            negation = "" if isinstance(operator, ast.Eq) else "not "
            is_open = is_name(left) and is_name(right) and not closed.has(left, right)
            for end in ENDS if is_open else ():
                loose = f"str({ast.unparse(left)}).{end}(str({ast.unparse(right)}))"
                yield "neighbour", node, f"({negation}{loose})"
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as operator], comparators=[right]):
            negation = "" if isinstance(operator, ast.In) else "not "
            is_given = isinstance(left, ast.Name | ast.Attribute | ast.BinOp)
            for end in ENDS if is_given and not closed.has(left, right) else ():
                loose = f"any(str({ast.unparse(left)}).{end}(str(known)) for known in"
                yield "neighbour", node, f"({negation}{loose} {ast.unparse(right)}))"
        case ast.Call(func=ast.Name(id="fnmatchcase"), args=[name, pattern]):
            loose = f"str({ast.unparse(name)}).startswith(str({ast.unparse(pattern)}).rstrip('*'))"
            yield "neighbour", node, loose
        case ast.Call(func=ast.Attribute(attr="fullmatch") as called):
            yield "neighbour", called, changed(called, attr="match")


def of_bounds(node: ast.AST) -> Iterator[Replacement]:
    """Return one of two bounds, or conditions, in place of both."""
    match node:
        case ast.Call(func=ast.Name(id="min" | "max") | ast.Attribute(attr="minimum" | "maximum")):
            for one in node.args if len(node.args) == 2 else ():
                yield "one bound", node, f"({ast.unparse(one)})"
        case ast.Compare(ops=[first, second], comparators=[middle, right]):
            yield "one bound", node, changed(node, ops=[first], comparators=[middle])
            yield "one bound", node, changed(node, left=middle, ops=[second], comparators=[right])
        case ast.BoolOp(values=values):
            for place in range(len(values)):
                kept = [ast.unparse(one) for one in [*values[:place], *values[place + 1 :]]]
                joined = " and " if isinstance(node.op, ast.And) else " or "
                yield "one bound", node, f"({joined.join(f'({one})' for one in kept)})"


def of_scope(tree: ast.AST) -> Iterator[Replacement]:
    """Return the scopes next to those that are asked for, in decorators too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "requires":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value in SCOPES:
                    place = SCOPES.index(argument.value)
                    for other in (*SCOPES[:place][-1:], *SCOPES[place + 1 :][:1]):
                        yield "scope", argument, repr(other)


def is_name(node: ast.AST) -> bool:
    """Tell what may be a name: neither a number nor the result of a computation."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, ast.Name | ast.Attribute)


def is_text(node: ast.AST) -> bool:
    """Tell what may be joined but not be reckoned with."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, TEXT)


def of_statement(node: ast.AST) -> Iterator[Replacement]:
    """Return the statements that may be missing, and what a function may return unchanged."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            yield "statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", node, "pass"
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(value)):
                yield "statement", node, "pass"
        case ast.If(body=[ast.Raise() | ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
            yield "guard", node, "pass"
        case ast.FunctionDef(args=arguments, returns=ast.expr() as returns, body=body):
            kind = ast.unparse(returns)
            annotated = [one for one in arguments.args if one.annotation]
            same = [one.arg for one in annotated if ast.unparse(one.annotation or one) == kind]
            for one in (inner for statement in body for inner in ast.walk(statement)):
                if same and isinstance(one, ast.Return) and not isinstance(one.value, ast.Name):
                    yield "return", one, f"return {same[0]}"


def python_edits(source: bytes, required: Required, closed: Closed = NOTHING) -> Iterator[Edit]:
    """Return the edits of a Python file; not all of them leave it one that can be compiled."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    found = [(one, one[1].lineno) for one in of_scope(tree)]
    for node, statement in visible(tree):
        for one in chain(
            of_operator(node),
            of_value(node),
            of_call(node, required),
            of_neighbour(node, closed),
            of_bounds(node),
            of_statement(node),
        ):
            first = one[1].lineno if isinstance(one[1], ast.stmt) else statement
            found += [(one, first)]
    for (kind, old, code), first in found:
        begin = starts[old.lineno - 1] + old.col_offset
        end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
        yield Edit(kind, begin, end, code, first)


# --- JavaScript ---------------------------------------------------------------------------------

STRING_OR_COMMENT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`""", re.DOTALL
)
SCRIPT = (
    ("comparison", r"(?<= )>=(?= )", ">"),
    ("comparison", r"(?<= )>(?= )", ">="),
    ("comparison", r"(?<= )<=(?= )", "<"),
    ("comparison", r"(?<= )<(?= )", "<="),
    ("equality", r"===", "!=="),
    ("equality", r"!==", "==="),
    ("and/or", r"&&", "||"),
    ("and/or", r"\|\|", "&&"),
    ("not", r"!(?=[\w(])", ""),
    ("true/false", r"\btrue\b", "false"),
    ("true/false", r"\bfalse\b", "true"),
    ("arithmetic", r"(?<= )\+(?= [\w(])", "-"),
    ("arithmetic", r"(?<= )-(?= )", "+"),
    ("arithmetic", r"(?<= )\*(?= )", "/"),
    ("arithmetic", r"(?<= )/(?= )", "*"),
    ("function", r"\bMath\.min\b", "Math.max"),
    ("function", r"\bMath\.max\b", "Math.min"),
    ("constant", r"(?<![\w.#])[1-9]\d*(?![\w.])", "0"),
    ("branch", r"(?<= )\?\?(?= )", "&&"),
    ("argument", r"(?<=\w), \w+(?=\))", ""),
    ("statement", r"(?m)(?<=[;{}_]\n)[ \t]+[\w.?]+\([^\n]*\);$", ""),
    ("statement", r"(?m)(?<=[;{}_]\n)[ \t]+\w+\.[\w.]+ = [^\n]*;$", ""),
    ("guard", r"(?m)(?<=[;{}_]\n)[ \t]+if \([^\n]*\) return[^\n]*;$", ""),
)
"""Kinds of mutants, what is replaced, outside of strings and comments, and by what."""


def script_edits(source: bytes) -> Iterator[Edit]:
    """Return the edits of a JavaScript file."""
    # One byte a character, so that places in the text are places in the file.
    text = source.decode("latin-1")
    code = STRING_OR_COMMENT.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text)
    for kind, pattern, put in SCRIPT:
        for found in re.finditer(pattern, code):
            line = code.count("\n", 0, found.start()) + 1
            yield Edit(kind, found.start(), found.end(), put, line)
