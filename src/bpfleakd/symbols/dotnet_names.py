"""Readable names of methods, from what the runtime and the compilers call them.

    Shop.Program+<Serve>d__3           MoveNext             Shop.Program.Serve
    Shop.Program                       <Serve>g__Retry|3_0  Shop.Program.Serve.Retry
    Shop.Program+<>c                   <Main>b__0_1         Shop.Program.Main.<lambda 0_1>
    Shop.Program+<>c__DisplayClass3_0  <Main>b__2           Shop.Program.Main.<lambda 2>
    System.Collections.Generic.Dictionary`2[System.Int32,System.__Canon]  set_Item
                                       System.Collections.Generic.Dictionary<System.Int32,__Canon>.set_Item
    Shop.Order                         .ctor                Shop.Order..ctor

An async method or iterator is a class of the compiler with a MoveNext: its frame is the method's. So are
those of Mono's compiler (`<Serve>c__async0`, `<Numbers>c__Iterator1`, `<Main>m__0`, `c__AnonStorey`).
"""

from __future__ import annotations

import re

from bpfleakd.printable import printable, shortened

NAME_LIMIT_CHARACTERS = 512

_STATE_MACHINE = re.compile(r"<(?P<method>.+)>(?:d(?:__\w+)?|c__(?:async|Iterator)\w*)")
_CLOSURE = re.compile(r"<(?P<method>.*)>c(?:__(?:DisplayClass|AnonStorey)\w*)?")
_LAMBDA = re.compile(r"<(?P<method>.*)>[bm]__(?P<number>\w+)")
_LOCAL_FUNCTION = re.compile(r"<(?P<method>.*)>g__(?P<name>\w+)\|?\w*")
# The name of a program without a class around its statements.
_TOP_LEVEL = "<Main>$"
_ARITY = re.compile(r"`\d+")
_OF_SHARED_CODE = re.compile(r"\bSystem\.__Canon\b")


def method_name(namespace: str, name: str) -> str:
    """The readable name of a method, from its type (with namespace) and its own name."""
    scope, parameters = _generic(namespace)
    types = [part for part in scope.split("+") if part]
    own = _own_name(name)
    while types:
        last = _ARITY.sub("", types[-1])
        if machine := _STATE_MACHINE.fullmatch(last):
            # The class that the compiler generated for this method; its MoveNext adds no information.
            own = [*_own_name(machine["method"]), *([] if name == "MoveNext" else own)]
        elif closure := _CLOSURE.fullmatch(last):
            own = [*_outer(closure["method"] if own[0].startswith("<lambda") else ""), *own]
        else:
            break
        parameters = ""
        types.pop()
    owner = _ARITY.sub("", ".".join(types)) + parameters
    return _shown(".".join(part for part in (owner, *own) if part))


def type_name(name: str) -> str:
    """The readable name of a type."""
    scope, parameters = _generic(name)
    return _shown(_ARITY.sub("", scope).replace("+", ".") + parameters)


def assembly_name(path: str) -> str:
    """The name of an assembly, from the path of its file or unchanged."""
    name = path.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
    return _shown(name.removesuffix(".dll").removesuffix(".exe"))


def _own_name(name: str) -> list[str]:
    if found := _LAMBDA.fullmatch(name):
        return [*_outer(found["method"]), f"<lambda {found['number']}>"]
    if found := _LOCAL_FUNCTION.fullmatch(name):
        return [*_outer(found["method"]), found["name"]]
    return ["Main" if name == _TOP_LEVEL else name]


def _outer(method: str) -> list[str]:
    """The method that contains a lambda, possibly inside another lambda or local function."""
    return _own_name(method) if method else []


def _generic(name: str) -> tuple[str, str]:
    """A type without its type arguments, and these in C# syntax."""
    bracket = name.find("[")
    # `Byte[]` is an array.
    if bracket < 0 or name[bracket + 1 : bracket + 2] in ("]", ",", ""):
        return name, ""
    arguments = _ARITY.sub("", name[bracket:]).replace("+", ".")
    arguments = _OF_SHARED_CODE.sub("__Canon", arguments)
    return name[:bracket], _angled(arguments)


def _angled(text: str) -> str:
    """Brackets of type arguments as angle brackets; those of arrays are kept."""
    out: list[str] = []
    arrays = 0
    for place, character in enumerate(text):
        if character == "[" and text[place + 1 : place + 2] in ("]", ","):
            arrays += 1
            out.append(character)
        elif character == "]" and arrays:
            arrays -= 1
            out.append(character)
        else:
            out.append({"[": "<", "]": ">"}.get(character, character))
    return "".join(out)


def _shown(text: str) -> str:
    return shortened(printable(text), NAME_LIMIT_CHARACTERS)
