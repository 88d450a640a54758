"""Which names a cell's code binds and reads, by its syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

__all__ = ["names_bound_by", "names_read_by"]

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PARTS = ("body", "handlers", "cases", "orelse", "finalbody")


def names_bound_by(source: str, line: int | None) -> tuple[str, ...]:
    """Return the names that a cell binds to new values, in order.

    Of the innermost statement around ``line``, counted from 1, or of all where it is ``None``.
    Assignments, also to tuples and by ``:=``, and the targets of ``for`` and ``with`` count;
    ``x += y`` does not, nor does anything inside a function or a class. A cell that is no
    Python as it stands, as one with magics, binds none.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    statements = list(_statements(tree.body))
    if line is not None:
        around = [s for s in statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
        statements = around[-1:]
    names = (name for statement in statements for name in _bound(statement))
    return tuple(dict.fromkeys(names))


def names_read_by(source: str) -> frozenset[str]:
    """Return the names that a cell reads anywhere, of one that is Python as it stands."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(
        node.id for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements and, after each, those inside it; functions and classes are left out."""
    for node in body:
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, ast.stmt):
            yield node
        for part in _PARTS:
            yield from _statements(getattr(node, part, ()))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield what a statement binds by itself, not by those inside it."""
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return  # it declares a type
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            continue
        if isinstance(statement, ast.AugAssign) and child is statement.target:
            continue
        yield from _stored(child)


def _stored(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.comprehension):
        # Its own variable is not the cell's.
        children: Iterator[ast.AST] = iter((node.iter, *node.ifs))
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _stored(child)
