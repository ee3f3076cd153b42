"""Names of methods as run-times write them into perf maps, and which code is the run-time's own.

Methods of .NET have another name in a frame, type.method, and their assembly for its module.

    instance void [Shop] Shop.Cart::Add(int32)              .NET: result, [assembly], type::method
    int32 [Shop] dynamicClass::IL_STUB_PInvoke(int32)       .NET: a stub that marshals arguments
    stub<7> GenerateResolveStub<GenerateResolveStub>        .NET: other stubs
    JS:*leak /srv/app.js:3:14, LazyCompile:~x node:url:1:1  Node.js: function, script
    void com.example.Shop.keep(long), Interpreter           Java, from Compiler.perfmap

A managed program allocates through its runtime: the method that requested memory is blamed for memory that
the garbage collector commits, or that the C function behind AllocHGlobal allocates. The same applies to
native code of the class library (zlib behind java.util.zip): its caller decides, not its file. Native code
that a method of the program calls directly is blamed itself, and so is code that the virtual machine calls:
agents, profilers, addons, libraries that are being loaded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from bpfleakd.model.address_space import NO_MODULE
from bpfleakd.model.code.method import dotnet_assembly
from bpfleakd.model.code.stack import Frame, FrameKind

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
# In any file: Node.js has V8 in its executable.
_RUNTIME_FUNCTION = re.compile(r"(?:[\w:*&<>, ]+ )?(?:v8|node|cppgc|heap::base)::.*|Builtins_\w+")
# Code between a method and what it calls.
_STUB = r"(?:Builtin|RegExp|BytecodeHandler|Stub|Wasm)\w*:.*|Interpreter|[\w ]*[Ss]tub\w*(?: \(.*\))?"
_RUNTIME_METHOD = re.compile(
    _STUB + r"|(?:JS|LazyCompile|Function|Eval|Script):.* node:.*"
    r"|(?:[\w$.\[\]]+ )?(?:java|javax|jdk|sun|com\.sun)\.[\w$./+<>]+(?:\(.*)?"
)
# Methods through which a program calls its own native code (method handles, java.lang.foreign, JNA) or loads
# it (JNI_OnLoad).
_CALLING = re.compile(
    _STUB + r"|(?:[\w$.\[\]]+ )?"
    r"(?:java\.lang\.(?:invoke|foreign|(?:System|Runtime|ClassLoader(?:\$NativeLibrary)?)\.load)"
    r"|jdk\.internal\.(?:foreign|loader)|com\.sun\.jna)[\w$./+<>]*(?:\(.*)?"
)
# The virtual machine's files, which call native code of a program on their own account, under any method.
_MACHINE_FILE = re.compile(r"(?:node|v8|lib(?:node|jvm|coreclr|monosgen-[\d.]+)\.so(?:\.\d+)*)")

STUBS = "(stubs)"

_V8 = re.compile(r"\w+:[*~^+]?[^ ]* (?:file://)?(.+?):\d+:\d+")
_PYTHON = re.compile(r"py::[^:]*:(.+)")
_JAVA = re.compile(r"(?:[\w$.\[\]]+ )?((?:[\w$]+\.)*)([\w$/+]+)(?:\.|::)[\w$<>]+(?:\(.*)?")


def is_dotnet_stub(name: str) -> bool:
    """Whether a name is that of a stub that .NET generates to call methods."""
    return bool(_DOTNET_STUB.fullmatch(name))


def is_own_method(frame: Frame) -> bool:
    """Whether a frame is a managed method of the program, not of its run-time or class library."""
    return frame.kind is FrameKind.JIT and frame.function is not None and not is_runtime(frame)


def caller_of_class_library(frames: Sequence[Frame]) -> Frame | None:
    """The program's method on whose behalf the class library's native code, where `frames` begin, runs.

    None if they begin elsewhere: with a method, or with native code that the class library did not call.
    """
    if not frames or frames[0].kind is not FrameKind.NATIVE:
        return None
    native = itertools.takewhile(lambda frame: not is_managed(frame), frames)
    if any(frame.module and _MACHINE_FILE.fullmatch(frame.module) for frame in native):
        return None
    methods = (frame for frame in frames if is_managed(frame))
    caller = next((frame for frame in methods if not _is_calling(frame)), None)
    if caller is None or not _is_of_class_library(caller):
        return None
    return next((frame for frame in methods if is_own_method(frame)), None)


def _is_of_class_library(method: Frame) -> bool:
    # A method compiled ahead of time has a file and no name. Other code without a name may be the program's.
    return is_runtime(method) and (method.kind is FrameKind.NATIVE or bool(method.function))


def is_managed(frame: Frame) -> bool:
    """Whether a frame is or may be a method of a managed program, compiled at run time or ahead of it."""
    # Unknown code may be a method.
    is_code = frame.kind in (FrameKind.JIT, FrameKind.UNKNOWN)
    return is_code or bool(frame.module and frame.module.endswith(".dll"))


def _is_calling(frame: Frame) -> bool:
    name = frame.function or ""
    return bool(_CALLING.fullmatch(name)) or is_dotnet_stub(name) or name.startswith(_MARSHALLING_STUB)


def interpreted_caller(frames: Sequence[Frame]) -> Frame | None:
    """The innermost function of an interpreted program before the interpreter's library; None without one.

    The program's function is charged with allocations of an extension that it called, or of a C library that
    the extension called. None, too, if only functions of Node.js itself are left of those that called an
    addon, since V8 has inlined the program's.
    """
    interpreted = [frame for frame in frames if frame.kind is FrameKind.INTERPRETED and frame.function]
    own = next((frame for frame in interpreted if not is_runtime(frame)), None)
    if own is not None or not interpreted or any(map(is_addon, frames)):
        return own
    return interpreted[0]


def is_addon(frame: Frame) -> bool:
    """Whether it is native code of an addon of Node.js."""
    return frame.kind is FrameKind.NATIVE and bool(frame.module and frame.module.endswith(".node"))


def is_interpreter(frame: Frame) -> bool:
    """Whether a frame is in Python's interpreter."""
    return bool(frame.module and _INTERPRETER_FILE.fullmatch(frame.module))


def is_runtime(frame: Frame) -> bool:
    """Whether a frame is in a runtime for managed code, in its class library or in one of its stubs."""
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


def module_of(name: str) -> str:
    """The module of a method, from its name in a perf map.

    .NET: the assembly, or STUBS; Node.js: the script; Java: the package or class; Python
    (py::leak:/srv/app.py): the file; others (LeakyTemplate::render): what is before the last ::.
    """
    for pattern in (_PYTHON, _V8):
        if found := pattern.fullmatch(name):
            return found[1]
    if assembly := dotnet_assembly(name):
        return assembly
    if is_dotnet_stub(name):
        return STUBS
    if found := _JAVA.fullmatch(name):
        return found[1].rstrip(".") or found[2]
    scope, colons, _method = name.partition("(")[0].rpartition("::")
    return scope if colons and scope else NO_MODULE
