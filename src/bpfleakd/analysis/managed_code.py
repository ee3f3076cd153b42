"""Names of methods as run-times write them into perf maps, and which code is the run-time's own.

Methods of .NET have another name in a frame, type.method, and their assembly for its module.

    instance void [Shop] Shop.Cart::Add(int32)              .NET: result, [assembly], type::method
    int32 [Shop] dynamicClass::IL_STUB_PInvoke(int32)       .NET: a stub that marshals arguments
    stub<7> GenerateResolveStub<GenerateResolveStub>        .NET: other stubs
    JS:*leak /srv/app.js:3:14, LazyCompile:~x node:url:1:1  Node.js: function, script
    void com.example.Shop.keep(long), Interpreter           Java, from Compiler.perfmap

A managed program allocates through its runtime: memory that the garbage collector commits, or the C function
behind AllocHGlobal takes, is blamed on the method that requested it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpfleakd.model.code.stack import Frame, FrameKind

__all__ = ["interpreted_caller", "is_dotnet_stub", "is_interpreter", "is_own_method", "is_runtime"]

_DOTNET_LIBRARY = re.compile(r"System(?:\.[\w.]+)?|mscorlib|netstandard")
_DOTNET_STUB = re.compile(r"stub<\d+> .*")
_MARSHALLING_STUB = "dynamicClass.IL_STUB_"

_INTERPRETER = r"(?:lib)?python3\.\d+[a-z]*(?:\.so[\d.]*)?"
_INTERPRETER_FILE = re.compile(_INTERPRETER)
_RUNTIME_FILE = re.compile(
    _INTERPRETER + r"|node|v8|libnode\.so(?:\.\d+)*"
    r"|lib(?:coreclr|clrjit|clrgc|System\.[\w.]+|jvm|java|nio|monosgen-[\d.]+)\.so(?:\.\d+)*"
    r"|(?:System\.[\w.]+|mscorlib)\.dll"
)
# In whatever file: Node.js has V8 in its executable.
_RUNTIME_FUNCTION = re.compile(r"(?:[\w:*&<>, ]+ )?(?:v8|node|cppgc|heap::base)::.*|Builtins_\w+")
_RUNTIME_METHOD = re.compile(
    r"(?:Builtin|RegExp|BytecodeHandler|Stub|Wasm)\w*:.*"
    r"|(?:JS|LazyCompile|Function|Eval|Script):.* node:.*"
    r"|(?:[\w$.\[\]]+ )?(?:java|javax|jdk|sun|com\.sun)\.[\w$./+<>]+(?:\(.*)?"
    r"|Interpreter|[\w ]*[Ss]tub\w*(?: \(.*\))?"
)


def is_dotnet_stub(name: str) -> bool:
    """Whether it is code that .NET makes to call methods, and no method."""
    return bool(_DOTNET_STUB.fullmatch(name))


def is_own_method(frame: Frame) -> bool:
    """Whether a frame is a managed method of the program, not of its run-time or class library."""
    return frame.kind is FrameKind.JIT and frame.function is not None and not is_runtime(frame)


def interpreted_caller(frames: Sequence[Frame]) -> Frame | None:
    """The innermost function of an interpreted program, before that of the interpreter's library; or None.

    What an extension, or a C library that it calls, allocates is the doing of the function that called it.
    """
    interpreted = [frame for frame in frames if frame.kind is FrameKind.INTERPRETED and frame.function]
    own = (frame for frame in interpreted if not is_runtime(frame))
    return next(own, interpreted[0] if interpreted else None)


def is_interpreter(frame: Frame) -> bool:
    """Whether a frame is of Python's interpreter."""
    return bool(frame.module and _INTERPRETER_FILE.fullmatch(frame.module))


def is_runtime(frame: Frame) -> bool:
    """Whether a frame is of a run-time for managed code, of its class library or one of its stubs."""
    if frame.module and _RUNTIME_FILE.fullmatch(frame.module):
        return True
    name = frame.function
    if not name:
        return False
    if frame.kind is not FrameKind.JIT:
        return bool(_RUNTIME_FUNCTION.fullmatch(name))
    if _DOTNET_LIBRARY.fullmatch(frame.module or "") or name.startswith(_MARSHALLING_STUB):
        return True
    return is_dotnet_stub(name) or bool(_RUNTIME_METHOD.fullmatch(name))
