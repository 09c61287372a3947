"""Detect answers that replace parts of a check, or that make a check accept anything."""

import ast
import builtins
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from types import FunctionType, ModuleType
from typing import Any

import torch

PACKAGES = ("cs336_course", "cs336_lib")
# Methods with which an object decides how it is compared, or which number it becomes
COMPARISONS = {
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"),
    *("__instancecheck__", "__subclasscheck__"),
    *("__float__", "__int__", "__index__", "__complex__", "__array__"),
    *("__torch_function__", "__torch_dispatch__", "__array_function__", "__array_ufunc__"),
}
# Further methods that no result of an answer needs
ARITHMETIC = {"__sub__", "__rsub__", "__abs__", "__round__", "__truediv__", "__rtruediv__"}
SETTERS = {"setattr", "__setattr__"}
# What PyTorch itself replaces when a default is set
DEFAULTS = {"torch.Storage"}


class Snapshot:
    """Record of the functions, classes and constants that checks use.

    It covers the loaded modules of both packages, the modules that these import, and the classes in
    all of them. `sys` is left out, because PyTorch itself changes it.
    """

    def __init__(self) -> None:
        ours = [m for name, m in sys.modules.items() if name.startswith(PACKAGES)]
        values = [value for module in ours for value in vars(module).values()]
        imported = [value for value in values if isinstance(value, ModuleType) and value is not sys]
        owners: dict[int, tuple[str, Any]] = {}
        for module in (builtins, *imported, *ours):
            owners[id(module)] = (module.__name__, module)
            for value in vars(module).values():
                if is_class(value):
                    owners[id(value)] = (f"{value.__module__}.{value.__qualname__}", value)
        self.entries = [
            (f"{owner_name}.{name}", vars(owner), name, value, parts(value))
            for owner_name, owner in owners.values()
            for name, value in vars(owner).items()
            if is_watched(name, value, owner_name) and f"{owner_name}.{name}" not in DEFAULTS
        ]
        self.classes = [
            (name, owner, len(vars(owner)), set(vars(owner)))
            for name, owner in owners.values()
            if is_class(owner)
        ]
        self.namespaces = [(vars(module), set(vars(module))) for module in ours]
        self.builtins = set(vars(builtins))

    def changed(self) -> str:
        """Return the name of something that was replaced after the record was made, or ""."""
        for name, owner, key, value, before in self.entries:
            if owner.get(key) is not value or not same(parts(value), before):
                return name
        for name, owner, size, names in self.classes:
            if len(vars(owner)) > size:  # a new name that hides an inherited one
                for key in vars(owner):
                    if key not in names and hasattr(owner.__base__, key):
                        return f"{name}.{key}"
        for namespace, names in self.namespaces:
            for name in namespace:  # a new name that hides a builtin
                if name in self.builtins and name not in names:
                    return f"{namespace['__name__']}.{name}"
        return "sys.settrace" if sys.gettrace() or sys.getprofile() else ""


def is_class(value: object) -> bool:
    """Return whether a value is a class, without asking the value itself."""
    return issubclass(type(value), type)


def is_watched(name: str, value: object, owner: str) -> bool:
    """Return whether a name is recorded. Other packages may change their own variables."""
    is_ours = owner.startswith(PACKAGES) and not name.startswith("__")
    return callable(value) or type(value) is property or is_ours


def parts(value: Any) -> list[object]:
    """Return the replaceable parts of a function or constant."""
    if type(value) in (dict, list, set):
        return [repr(value)]
    found: list[object] = []
    while type(value) is FunctionType:
        found += [value.__code__, value.__defaults__, value.__kwdefaults__]
        value = value.__dict__.get("__wrapped__")
    return found


def same(found: list[object], before: list[object]) -> bool:
    """Return whether two lists hold the same objects or equal texts.

    It calls no builtin, because an answer can replace them.
    """
    for a, b in zip(found, before, strict=True):
        if a is not b and not (a.__class__ is str and b.__class__ is str and a == b):
            return False
    return True


def own_comparison(nodes: Iterable[ast.AST]) -> str:
    """Return a method that this code defines and that decides a comparison, or ""."""
    for node in nodes:
        for inner in ast.walk(node):
            for name in defined(inner):
                if name in COMPARISONS:
                    return name
    return ""


def defined(node: ast.AST) -> list[object]:
    """Return names that a piece of code may define, also those in strings."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    if isinstance(node, ast.keyword):
        return [node.arg]
    texts: list[ast.AST | None] = []
    if isinstance(node, ast.Dict):
        texts = [*node.keys]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        texts = [node.slice]
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        texts = [inner for word in node.args for inner in ast.walk(word)]
        texts = texts if name in SETTERS else []
    return [text.value for text in texts if isinstance(text, ast.Constant)]


def classes() -> dict[int, type]:
    """Return all classes by identity. It keeps them, so that no new one gets such an identity."""
    found: set[type] = {object}
    todo: list[type] = [object]
    while todo:
        new = set(type.__subclasses__(todo.pop())) - found
        found |= new
        todo += new
    return {id(one): one for one in found}


def own_results(check: Callable[..., None], answers: list[Any], known: Mapping[int, type]) -> str:
    """Return a method with which a result decides how it is compared, or "".

    Unlike `own_comparison`, this finds methods whatever names them, but only in results.

    Args:
        check: The check, which has accepted the answer.
        answers: The accepted answer, and further arguments of the check.
        known: What `classes` returned before the answer ran.
    """
    inspector = Inspector(known)
    accepts(check, [inspector.spoil(answers[0]), *answers[1:]])
    return inspector.found


class Spoiler:
    """Makes wrong answers from an accepted one.

    Attributes:
        count: Number of results that were changed.
    """

    def __init__(self) -> None:
        self.count = 0

    def spoil(self, answer: Any) -> Any:
        """Return an answer whose results are wrong."""
        if isinstance(answer, type):
            return self.spoil_class(answer)
        if isinstance(answer, tuple) and all(callable(part) for part in answer):
            return tuple(self.spoil(part) for part in answer)
        if not callable(answer):
            return self.shift(answer)

        @functools.wraps(answer)
        def wrong(*arguments: Any, **keywords: Any) -> Any:
            return self.shift(answer(*arguments, **keywords))

        return wrong

    def spoil_class(self, answer: type) -> type:
        """Return a subclass whose `forward` is wrong."""
        forward = getattr(answer, "forward", None)
        return type(answer.__name__, (answer,), {"forward": self.spoil(forward)})

    def shift(self, value: Any) -> Any:
        """Return a value of the same type that differs. Other types stay as they are."""
        if isinstance(value, (list, tuple)):
            return type(value)([self.shift(item) for item in value])
        if isinstance(value, dict):
            return {name: self.shift(item) for name, item in value.items()}
        self.count += isinstance(value, (torch.Tensor, str, Number))
        if isinstance(value, torch.Tensor):
            return ~value if value.dtype == torch.bool else value + 1
        if isinstance(value, bool):
            return not value
        if isinstance(value, str):
            return value + "?"
        return value + 1 if isinstance(value, Number) else value  # type: ignore[operator]


class Inspector(Spoiler):
    """Looks at the results of an answer, and leaves them as they are.

    Args:
        known: What `classes` returned before the answer ran.

    Attributes:
        found: A method with which a result decides how it is compared, or "".
    """

    def __init__(self, known: Mapping[int, type]) -> None:
        super().__init__()
        self.known = known
        self.found = ""

    def shift(self, value: Any) -> Any:
        """Return the value after a look at its class and those of its items."""
        for one in type.mro(type(value)):
            if id(one) not in self.known:
                names = sorted((COMPARISONS | ARITHMETIC) & set(vars(one)))
                self.found = self.found or (f"{one.__name__}.{names[0]}" if names else "")
        if type(value) in (list, tuple):
            for item in value:
                self.shift(item)
        elif type(value) is dict:
            for item in value.values():
                self.shift(item)
        return value


def accepts_anything(check: Callable[..., None], answers: list[Any], has_result: bool) -> bool:
    """Return whether a check accepts a wrong version of an answer that it has accepted.

    Args:
        check: The check.
        answers: The accepted answer, and further arguments of the check.
        has_result: Whether the exercise asks for a result, which is then changed.
    """
    spoiler = Spoiler()
    spoiled = spoiler.spoil(answers[0])
    is_spoiled = has_result and accepts(check, [spoiled, *answers[1:]])
    if spoiler.count and has_result:
        return is_spoiled
    return accepts(check, [lambda *_, **__: None, *answers[1:]])  # without the expected effect


def accepts(check: Callable[..., None], answers: list[Any]) -> bool:
    """Return whether a check accepts these answers."""
    try:
        check(*answers)
    except Exception:
        return False
    return True
