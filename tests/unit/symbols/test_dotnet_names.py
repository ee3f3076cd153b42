"""Readable names of methods."""

from __future__ import annotations

import pytest

from bpfleakd.symbols.dotnet_names import assembly_name, method_name, type_name

LIST = "System.Collections.Generic.List"


@pytest.mark.parametrize(
    ("namespace", "name", "shown"),
    [
        ("Shop.Program", "Handle", "Shop.Program.Handle"),
        ("Shop.Order", ".ctor", "Shop.Order..ctor"),
        ("Shop.Sessions", ".cctor", "Shop.Sessions..cctor"),
        ("Shop.Cart+Line", "get_Price", "Shop.Cart.Line.get_Price"),
        # async methods and iterators, of Roslyn and of Mono
        ("Shop.Program+<Serve>d__3", "MoveNext", "Shop.Program.Serve"),
        ("Shop.Program+<Serve>c__async0", "MoveNext", "Shop.Program.Serve"),
        ("Shop.Program+<Numbers>c__Iterator1", "Dispose", "Shop.Program.Numbers.Dispose"),
        ("Shop.Store`1+<Load>d__2[System.__Canon]", "MoveNext", "Shop.Store.Load"),
        # lambdas, with and without variables of their method
        ("Shop.Program+<>c", "<Main>b__0_1", "Shop.Program.Main.<lambda 0_1>"),
        ("Shop.Program+<>c__DisplayClass3_0", "<Main>b__2", "Shop.Program.Main.<lambda 2>"),
        ("Shop.Program+<Main>c__AnonStorey2", "<>m__0", "Shop.Program.Main.<lambda 0>"),
        ("Shop.Program", "<Main>m__0", "Shop.Program.Main.<lambda 0>"),
        # local functions, lambdas in lambdas, async ones
        ("Shop.Program", "<Serve>g__Retry|3_0", "Shop.Program.Serve.Retry"),
        ("Shop.Program+<>c+<<Main>b__0_0>d", "MoveNext", "Shop.Program.Main.<lambda 0_0>"),
        ("Shop.Program+<<Main>g__Local|0_0>d", "MoveNext", "Shop.Program.Main.Local"),
        # statements without a class
        ("Program", "<Main>$", "Program.Main"),
        ("Program+<<Main>$>d__0", "MoveNext", "Program.Main"),
        ("Program+<>c", "<<Main>$>b__0_1", "Program.Main.<lambda 0_1>"),
        # generics
        (f"{LIST}`1[System.__Canon]", "Add", f"{LIST}<__Canon>.Add"),
        (f"{LIST}`1+Enumerator[System.Byte[]]", "Dispose", f"{LIST}.Enumerator<System.Byte[]>.Dispose"),
        ("dynamicClass", "IL_STUB_PInvoke", "dynamicClass.IL_STUB_PInvoke"),
        ("", "Dynamic1", "Dynamic1"),
        ("Shop.\x1b[2J", "Main\n", "Shop.\\x1b<2J.Main\\x0a"),
    ],
)
def test_a_method(namespace: str, name: str, shown: str) -> None:
    """As in the source."""
    assert method_name(namespace, name) == shown


def test_a_name_without_end_is_cut() -> None:
    """A program may choose it."""
    assert len(method_name("A" * 10_000, "B" * 10_000)) == 512


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Shop.Order", "Shop.Order"),
        ("Shop.Order[]", "Shop.Order[]"),
        ("Shop.Cart+Line", "Shop.Cart.Line"),
        (
            "System.Collections.Generic.Dictionary`2+Entry[System.Int32,Shop.Order][]",
            "System.Collections.Generic.Dictionary.Entry<System.Int32,Shop.Order>[]",
        ),
    ],
)
def test_a_type(name: str, shown: str) -> None:
    """Arrays keep their brackets."""
    assert type_name(name) == shown


def test_an_assembly() -> None:
    """The name of its file, without what all of them have."""
    assert assembly_name("/srv/app/My.Shop-2.dll") == "My.Shop-2"
    assert assembly_name("Generated0") == "Generated0"
