"""Modules of methods that were compiled at run time."""

from __future__ import annotations

import pytest

from bpfleakd.analysis.managed_code import STUBS, module_of


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("void [leaky] Program::Main(string[])[PreJIT]", "leaky"),
        ("instance class System.String [System.Private.CoreLib] System.IO.Path::Join()[Tier0]", None),
        ("bool [System.Private.CoreLib] System.Span`1[System.Char]::TryCopyTo(!0[])[OptimizedTier1]", None),
        ("void [DynamicClass] dynamicClass::IL_STUB_PInvoke(int32)[PreStub]", "DynamicClass"),
        ("int32 [Leaks] dynamicClass::IL_STUB_PInvoke(int32)[Optimized]", "Leaks"),
        ("int32 [Generated1] Template7::Render()[QuickJitted]", "Generated1"),
        (
            "int32 [Anonymously Hosted DynamicMethods Assembly] dynamicClass::lambda_method(Closure)",
            "Anonymously Hosted DynamicMethods Assembly",
        ),
        (
            "System.Linq.Expressions.Expression`1<System.Func`1> [System.Linq.Expressions] "
            "dynamicClass::IL_STUB_InstantiatingStub(System.Linq.Expressions.Expression`1)[Optimized]",
            "System.Linq.Expressions",
        ),
        ("class System.String[] [My.Shop-2] Order::Lines(int32[],int32[0...,0...])[Tier1]", "My.Shop-2"),
        ("instance !0 [Views_ℛ*1a2b#1-0] Views.Index+<Run>d__3::get_Item(!!0[])", "Views_ℛ*1a2b#1-0"),
        ("stub<905> AllocateTemporaryEntryPoints<PRECODE_FIXUP>", STUBS),
        ("LazyCompile:*leak /srv/app.js:3:14", "/srv/app.js"),
        ("Function:~leak /srv/with:colon.js:3:14", "/srv/with:colon.js"),
        ("JS:~leak file:///srv/app.mjs:10:12", "/srv/app.mjs"),
        ("LazyCompile:~ node:internal/url:1:1", "node:internal/url"),
        ("Script:~ /srv/with space.js:1:1", "/srv/with space.js"),
        ("JS:^f1 generated1.js:1:13", "generated1.js"),
        ("int java.lang.String.hashCode()", "java.lang"),
        ("java.util.HashMap::put", "java.util"),
        ("long Leaky.run(int)", "Leaky"),
        ("void com.example.Leaky$Inner.run(java.lang.String, int[])", "com.example"),
        ("py::leak:/srv/app.py", "/srv/app.py"),
        ("LeakyTemplate::render", "LeakyTemplate"),
        ("ns::Class::method(std::string)", "ns::Class"),
        ("Builtin:ArrayPush", "(no module)"),
        ("stub<1> GenerateLookupStub<GenerateLookupStub>", STUBS),
        ("StubRoutines (1)", "(no module)"),
        ("", "(no module)"),
    ],
)
def test_names_tell_their_module(name, module):
    """As the run-times write them."""
    assert module_of(name) == (module or "System.Private.CoreLib")


@pytest.mark.parametrize(
    "name", ["[" * 500, "a " * 250, "x." * 250 + "(", ":" * 500, "a.b " * 120, "$.[" * 160]
)
def test_hostile_names_take_no_time(name):
    """Patterns that go back and forth would be a way to stop the daemon."""
    for _ in range(100):
        assert isinstance(module_of(name), str)
