"""Blame: the first frame whose author decided to allocate."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.analysis.blame import blamed_frame, calling_frame, named_in_library
from bpfleakd.model.code.stack import Frame

from ..elf.building import compiled, output_of
from .frames import interpreted, jit, native, unknown

MALLOC = native("malloc", "libc.so.6")
MAIN = native("main")


def is_passed_over(frame: Frame) -> bool:
    """Whether the caller of a frame is blamed and not the frame."""
    return blamed_frame([MALLOC, frame, MAIN]) is MAIN


def test_the_caller_of_malloc() -> None:
    """The simplest stack: the caller of malloc."""
    leak = native("leak")
    assert blamed_frame([MALLOC, leak, MAIN, native("_start")]) is leak


@pytest.mark.parametrize(
    "module",
    [
        "libc.so.6",
        "libc-2.31.so",
        "libc.so",
        "libc.musl-x86_64.so.1",
        "ld-musl-x86_64.so.1",
        "ld-linux-x86-64.so.2",
        "ld-2.31.so",
        "libpthread-2.31.so",
        "libm.so.6",
        "libstdc++.so.6",
        "libstdc++.so.6.0.30",
        "libc++.so.1",
        "libc++abi.so.1.0",
        "libgcc_s.so.1",
        "libjemalloc.so.2",
        "libtcmalloc_minimal.so.4.5.9",
        "libmimalloc.so.2.0",
        "liblsan.so.0",
    ],
)
def test_libraries_that_are_tools(module: str) -> None:
    """Whatever is in run-time libraries and allocators works for its caller, with a name or without."""
    assert is_passed_over(native("anything", module))
    assert is_passed_over(native(None, module))


@pytest.mark.parametrize(
    "module",
    [
        "shop",
        "ld",
        "libc",
        "libm",
        "libcrypto.so.3",
        "libcap.so.2",
        "libmagic.so.1",
        "libstdc++-extras.so",
        "libc++x.so",
    ],
)
def test_files_that_are_no_tools(module: str) -> None:
    """Other libraries, and programs with a name like that, such as the linker, decide for themselves."""
    assert not is_passed_over(native("anything", module))
    assert not is_passed_over(native(None, module))


@pytest.mark.parametrize(
    "function",
    [
        "malloc",
        "__libc_malloc",
        "_malloc",
        "calloc",
        "reallocarray",
        "posix_memalign",
        "strdup",
        "__strdup",
        "strndup",
        "asprintf",
        "vasprintf",
        "getdelim",
        "operator new(unsigned long)",
        "operator new[](unsigned long, std::align_val_t)",
        "operator new",
        "std::__cxx11::basic_string<char, std::allocator<char> >::_M_create(unsigned long&, unsigned long)",
        "void std::vector<shop::Item>::_M_realloc_insert<shop::Item const&>(std::pair<int, int>, shop::Item)",
        "std::enable_if<true, shop::Item*>::type std::__uninitialized<shop::Item>(int (*)(char))",
        "__gnu_cxx::new_allocator<shop::Item>::allocate(unsigned long, void const*)",
        "std::make_unique<shop::Item>(int) [clone .isra.0]",
        "std::operator+(char const*, std::string const&)",
        # binutils 2.40 cannot read names with a generic lambda in them.
        "_ZSt13__invoke_implIPcZN4shop4sortEvEUlDpOT_E_JicRKS0_EESD_St14__invoke_otherOSF_SK_",
        "_ZNKSt8functionIFvvEE3runIZN4shop4sortEvEUlDpOT_E_EEvv",
        "std::(anonymous namespace)::pool::allocate(unsigned long)",
        "alloc::alloc::alloc",
        "alloc::raw_vec::finish_grow",
        "alloc::raw_vec::finish_grow (.llvm.1234567890)",
        "<alloc::vec::Vec<shop::Item> as core::clone::Clone>::clone",
        "<&mut alloc::string::String as core::fmt::Write::write_fmt::SpecWriteFmt>::spec_write_fmt",
        "<&dyn core::ops::function::Fn<(), Output = i32> as core::ops::function::FnOnce<()>>::call_once",
        "<&str as alloc::string::ToString>::to_string",
        "<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
        "core::ops::function::FnOnce::call_once{{vtable.shim}}",
        "hashbrown::raw::RawTable<T>::reserve_rehash",
        "__rust_alloc",
        "__rdl_realloc",
    ],
)
def test_functions_that_are_tools_wherever_they_are(function: str) -> None:
    """Wrappers and library templates, compiled into the program or inlined, work for their callers."""
    assert is_passed_over(native(function))


def test_code_of_rusts_library_for_a_type_of_the_program() -> None:
    """It was inlined from there; the program's own implementation lies elsewhere."""
    name = "<shop::Cart as alloc::string::SpecToString>::spec_to_string"
    in_library = "/rustc/59807616e1fa/library/alloc/src/string.rs:2940"
    assert is_passed_over(replace(native(name), inlined=True, location=in_library))
    assert not is_passed_over(replace(native(name), inlined=True, location="src/library/alloc.rs:7"))
    assert not is_passed_over(replace(native(name), inlined=False, location=in_library))


@pytest.mark.parametrize(
    "function",
    [
        "leak",
        "my_malloc",
        "malloc_cart",
        "xstrdup",
        "strdup_all(char**)",
        "Cart::operator new(unsigned long)",
        "stdx::load()",
        "shop::std_load()",
        "boost::make_cart()",
        "void shop::fill<int, std::less<int> >(std::vector<int>&)",
        "std::string shop::load<char>(char const*)",
        "std::unique_ptr<shop::Cart, std::default_delete<shop::Cart> > shop::make<int>(int&&)",
        "std::ostream& shop::operator<< <char>(std::ostream&, shop::Cart<char> const&)",
        "shop::Cart::operator std::string() const",
        "shop::Cart::operator->() const",
        "shop::load(std::string)::{lambda(std::string const&)#1}::operator()(std::string const&) const",
        "(anonymous namespace)::load(std::string)",
        "shop::(anonymous namespace)::load<std::string>(std::string)",
        "decltype (std::declval<int>()) shop::first<int>(int)",
        "void (*shop::handler<std::string>())(std::string)",
        "core::Engine::run(int)",
        "alloc::Arena::grow(unsigned long)",
        "<shop::Cart as core::clone::Clone>::clone",
        "<shop::Cart as alloc::string::ToString>::to_string",
        "shop::cart::Cart::new::{{closure}}",
        "std",
        "operator",
        "",
    ],
)
def test_functions_that_decide(function: str) -> None:
    """Functions that a program defines are blamed, whatever types their signatures name."""
    assert not is_passed_over(native(function))


@pytest.mark.parametrize(
    "function",
    [
        "_int_malloc",
        "__vasprintf_internal",
        "_IO_file_doallocate",
        "_IO_new_file_overflow.cold",
        "__GI___printf_chk",
        "fopen64",
        "getaddrinfo",
        "setlocale",
        "vfprintf",
        "snprintf",
        "qsort",
        "opendir",
    ],
)
def test_a_c_library_inside_the_program(function: str) -> None:
    """Statically linked, it has no separate file, and neither has its allocator: names identify it."""
    malloc, leak = native("malloc", "shop"), native("leak", "shop")
    assert blamed_frame([malloc, native(function, "shop"), leak]) is leak
    # A function of that name elsewhere is the program's own.
    own = native(function, "shop")
    assert blamed_frame([MALLOC, own, leak]) is own


@pytest.mark.parametrize(
    "function", ["__cxx_global_var_init", "open_cart", "printf_cart", "glob(int)", "_start_shop"]
)
def test_functions_beside_a_static_c_library(function: str) -> None:
    """Functions with merely similar names belong to the program."""
    own = native(function, "shop")
    assert blamed_frame([native("malloc", "shop"), own, MAIN]) is own


CPP = """
#include <map>
#include <memory>
#include <string>
#include <vector>
namespace shop {
struct Item { std::string name; operator std::string() const { return name; } };
struct Cart { std::vector<Item> items; std::map<int, std::shared_ptr<Item>> by_id; };
template <class T> __attribute__((noinline)) std::vector<T> load(const T &t) { return std::vector<T>(23, t); }
template <class T> __attribute__((noinline)) std::unique_ptr<T> make() { return std::make_unique<T>(); }
template <class F, class T> auto twice(F f, T t) -> decltype(f(t)) { f(t); return f(t); }
template <class T> std::string operator+(const Item &a, const T &) { return a.name + "x"; }
namespace { __attribute__((noinline)) std::string hidden(int n) { return std::string(n, 'x'); } }
int run(int n) {
    Cart cart;
    cart.items = load(Item{hidden(n)});
    cart.by_id[n] = std::make_shared<Item>(cart.items[0]);
    auto made = make<Cart>();
    auto more = twice([](std::string s) { return s + s; }, std::string("y"));
    return made->items.size() + more.size() + std::string(cart.items[0]).size() + (cart.items[0] + 1).size();
}
}
int main(int n, char **) { return shop::run(n); }
"""


def test_what_a_compiler_makes_of_cpp(tmp_path: Path) -> None:
    """For every function of a real program, the mangled name shows its owner; the readable name must show the
    same.
    """
    program = compiled(tmp_path, CPP, "-O0", suffix=".cpp")
    mangled = output_of("nm", "--defined-only", "-p", program).splitlines()
    readable = output_of("nm", "--defined-only", "-p", "-C", program).splitlines()
    ours = theirs = 0
    for raw, shown in zip(mangled, readable, strict=True):
        symbol, name = raw.split()[2], shown[19:]
        if re.match(r"_Z(?:Z?NK?|T?)4shop|_ZN12_GLOBAL__N_1|_Z?ZN4shop", symbol):
            assert not is_passed_over(native(name)), name
            ours += 1
        elif re.match(r"_ZNK?(?:St|Sa|Ss|9__gnu_cxx)|_ZSt", symbol):
            assert is_passed_over(native(name)), name
            theirs += 1
    assert ours >= 8
    assert theirs >= 100


class TestWholeStacks:
    """Stacks as they are seen."""

    def test_cpp(self) -> None:
        """From malloc through operator new and the containers to the program."""
        leak = native("shop::Cart::add(std::string)")
        stack = [
            MALLOC,
            native("operator new(unsigned long)", "libstdc++.so.6"),
            native("std::allocator<char>::allocate(unsigned long)", inlined=True),
            native("std::string::_M_create(unsigned long&, unsigned long)"),
            leak,
            MAIN,
        ]
        assert blamed_frame(stack) is leak

    def test_an_inlined_function_of_the_program(self) -> None:
        """An inlined function is blamed like any other."""
        leak = native("shop::leak", inlined=True)
        assert blamed_frame([MALLOC, leak, MAIN]) is leak

    def test_a_stripped_program(self) -> None:
        """A frame of the program is blamed even without a name."""
        stripped = native(None)
        assert blamed_frame([MALLOC, stripped, native("exported")]) is stripped

    def test_code_made_at_run_time(self) -> None:
        """A method of .NET, Java or Node comes right behind its run-time library."""
        method = jit("Shop.Cart::Add(System.String)[Tier0]")
        assert blamed_frame([MALLOC, method, native("RunMain", "libcoreclr.so")]) is method

    def test_the_garbage_collector_works_for_who_allocates(self) -> None:
        """Its commits are charged to the method that made the array, not to the collector."""
        method = jit("Shop.Program.KeepArrays", "Shop")
        stack = [
            native("mprotect", "libc.so.6"),
            native("WKS::gc_heap::virtual_commit(void*, unsigned long)", "libcoreclr.so"),
            native("JIT_NewArr1(CORINFO_CLASS_STRUCT_*, long)", "libcoreclr.so"),
            method,
            native("RunMain(MethodDesc*)", "libcoreclr.so"),
            native("main", "dotnet"),
        ]
        assert blamed_frame(stack) is method

    @pytest.mark.parametrize(
        "passed_over",
        [
            native("SystemNative_MemAlloc", "libSystem.Native.so"),
            native(None, "System.Private.CoreLib.dll"),
            jit("System.Collections.Generic.List<Cart>.Add", "System.Private.CoreLib"),
            jit("dynamicClass.IL_STUB_PInvoke", "Shop"),
            jit("stub<7> GenerateResolveStub<GenerateResolveStub>"),
            native("v8::internal::Heap::AllocateRaw(int)", "node"),
            native("void v8::internal::Scavenger::Process<int>(v8::internal::Heap*)", "node"),
            native("node::Buffer::New(v8::Isolate*, unsigned long)", "node"),
            native("Builtins_CEntry_Return1_ArgvOnStack_BuiltinExit", "node"),
            jit("LazyCompile:*allocate node:buffer:361:18"),
            native("os::malloc(unsigned long, MEMFLAGS)", "libjvm.so"),
            jit("java.lang.Object jdk.internal.misc.Unsafe.allocateMemory(long)"),
            jit("Interpreter"),
            jit("StubRoutines (1)"),
        ],
        ids=lambda frame: frame.function or frame.module,
    )
    def test_run_times_are_tools_of_the_code_that_they_run(self, passed_over: Frame) -> None:
        """With their class libraries and the stubs that they make."""
        for method in (
            jit("Shop.Program.Main", "Shop"),
            jit("JS:checkout /srv/shop.js:17:18"),
            jit("void com.example.Shop.checkout()"),
        ):
            assert blamed_frame([MALLOC, passed_over, method, MAIN]) is method

    def test_a_run_time_on_its_own_account(self) -> None:
        """If no code of the program called it, the runtime itself is blamed."""
        compiler = native("Compiler::compCompile(void**)", "libclrjit.so")
        stack = [
            MALLOC,
            compiler,
            native("ThreadStart", "libcoreclr.so"),
            native("start_thread", "libc.so.6"),
        ]
        assert blamed_frame(stack) is compiler

    @pytest.mark.parametrize(
        "library_calls",
        [
            [
                native("deflateInit2_", "libz.so.1"),
                native("Java_java_util_zip_Deflater_init", "libzip.so"),
                jit("java.util.zip.Deflater.init"),
                jit("java.util.zip.GZIPOutputStream.<init>"),
            ],
            [
                native("getaddrinfo_of_a_plugin", "libnss_shop.so.2"),
                native(None, "libnet.so"),
                jit("Interpreter"),
                jit("java.net.Inet6AddressImpl.lookupAllHostAddr"),
            ],
            [
                native("CRYPTO_new_ex_data", "libcrypto.so.3"),
                native("CryptoNative_EvpMdCtxCreate", "libSystem.Security.Cryptography.Native.OpenSsl.so"),
                jit("dynamicClass.IL_STUB_PInvoke", "System.Security.Cryptography"),
                native(None, "System.Security.Cryptography.dll"),
            ],
        ],
        ids=["zlib", "name service", "OpenSSL"],
    )
    def test_native_code_that_the_class_library_called(self, library_calls: list[Frame]) -> None:
        """Whatever file it is in, it works for the method of the program."""
        method = jit("Shop.archive", "Shop")
        stack = [MALLOC, *library_calls, method, jit("java.lang.Thread.run"), native(None, "libjvm.so")]
        assert blamed_frame(stack) is method

    @pytest.mark.parametrize(
        "called_by",
        [
            [jit("Shop.nativeLeak")],
            [jit("Interpreter"), jit("Shop.nativeLeak")],
            [jit("dynamicClass.IL_STUB_PInvoke", "Shop"), jit("Shop.Program.Handle", "Shop")],
            [native(None, "Shop.dll"), jit("System.Threading.Thread.Run", "System.Private.CoreLib")],
            [jit("java.lang.invoke.LambdaForm$MH.invoke"), jit("Shop.callsForeign")],
            [unknown(), jit("java.util.concurrent.FutureTask.run"), jit("Shop.main")],
            [
                native("JNI_OnLoad", "libsessions.so"),
                native("Java_jdk_internal_loader_NativeLibraries_load", "libjava.so"),
                jit("jdk.internal.loader.NativeLibraries.load"),
                jit("java.lang.Runtime.loadLibrary0"),
                jit("java.lang.System.loadLibrary"),
                jit("Shop.<clinit>"),
            ],
            [
                native("JvmtiExport::post_sampled", "libjvm.so"),
                jit("java.util.HashMap.put"),
                jit("Shop.main"),
            ],
            [native("v8::Call", "node"), jit("JS:~emit node:events:1:2"), jit("JS:~serve /srv/shop.js:3:4")],
        ],
        ids=[
            "JNI",
            "interpreted",
            "P/Invoke",
            "ahead of time",
            "foreign function",
            "without a name",
            "being loaded",
            "an agent",
            "an addon that listens",
        ],
    )
    def test_native_code_that_the_program_called(self, called_by: list[Frame]) -> None:
        """A leaking library of the program is blamed itself, whatever runtime runs the method that called it.
        """
        leak = native("remember", "libsessions.so")
        stack = [MALLOC, leak, *called_by, jit("java.lang.Thread.run"), native(None, "libjvm.so")]
        assert blamed_frame(stack) is leak

    def test_an_addon_whose_caller_was_inlined(self) -> None:
        """It is blamed, and not the function of Node.js that is left; any function of the program is."""
        take = native("take", "addon.node")
        stack = [MALLOC, take, native("v8impl::Invoke", "node"), interpreted("listOnTimeout", "node")]
        assert blamed_frame([*stack, native("uv_run", "node")]) is take
        tick = interpreted("tick", "shop.js")
        assert blamed_frame([*stack, tick]) is tick
        assert blamed_frame([MALLOC, native("v8::Call", "node"), *stack[3:]]) is stack[3]

    def test_native_code_of_a_class_library_by_itself(self) -> None:
        """Without any method of the program nothing better is known."""
        init = native("deflateInit2_", "libz.so.1")
        assert blamed_frame([MALLOC, init, jit("java.util.zip.Deflater.init"), unknown()]) is init

    def test_a_thread_of_the_machine(self) -> None:
        """It works for no method."""
        own = native("G1CardSet::allocate", "libjvm.so")
        begins = native("start_thread", "libc.so.6")
        assert blamed_frame([MALLOC, own, native(None, "libjvm.so"), begins]) is own

    def test_a_host_of_a_run_time(self) -> None:
        """A native program that starts a runtime called it; no managed method replaces it."""
        starting = native("coreclr_initialize", "libcoreclr.so")
        assert blamed_frame([MALLOC, starting, MAIN, jit("Shop.Program.Main", "Shop")]) is starting

    def test_an_address_that_nobody_knows(self) -> None:
        """Its owner is unknown, but the walk passed it: it is not skipped."""
        nobody = unknown()
        assert blamed_frame([MALLOC, nobody, MAIN]) is nobody

    def test_nothing_but_tools(self) -> None:
        """Then it is the outermost one that has a name: a thread of the C library, say."""
        outermost = native("start_thread", "libc.so.6")
        assert blamed_frame([MALLOC, native("getline", "libc.so.6"), outermost]) is outermost
        assert blamed_frame([MALLOC, outermost, native(None, "libc.so.6")]) is outermost

    def test_nothing_with_a_name(self) -> None:
        """Of tools without names, the outermost one."""
        frames = [native(None, "libc.so.6"), native(None, "libc.so.6", 0x23)]
        assert blamed_frame(frames) is frames[-1]

    def test_only_the_allocator(self) -> None:
        """A walk that ended at once blames the frame that it has."""
        assert blamed_frame([MALLOC]) is MALLOC

    def test_no_stack(self) -> None:
        """A lost stack blames nothing."""
        assert blamed_frame([]) is None


@pytest.mark.parametrize(
    "function",
    [
        "runtime.mallocgc",
        "runtime.growslice",
        "strings.(*Builder).grow",
        "internal/bytealg.MakeNoZero",
        "encoding/json.(*decodeState).object",
        "slices.Grow[...]",
        "fmt.Sprintf",
        "internal/runtime/syscall.Syscall6",
        "syscall.(*mmapper).Mmap",
        "golang.org/x/sys/unix.Mmap",
    ],
)
def test_gos_tools(function: str) -> None:
    """The runtime, and packages that work for their callers."""
    leak = native("example.org/shop/store.(*Orders).Remember")
    assert blamed_frame([native(function), leak, native("runtime.goexit")]) is leak


@pytest.mark.parametrize(
    "function", ["net/http.(*conn).serve", "main.remember", "runtimes.Load", "stringset.Add"]
)
def test_gos_other_packages(function: str) -> None:
    """A server keeps what it allocates; names that only begin alike belong to programs."""
    leak = native(function)
    assert blamed_frame([native("runtime.makeslice"), leak, native("main.main")]) is leak


def test_a_stack_of_gos_tools_alone() -> None:
    """Nobody is helped by the name of the function that every goroutine begins in."""
    once = native("sync.(*Once).doSlow")
    assert blamed_frame([native("runtime.mallocgc"), once, native("runtime.goexit")]) is once


@given(function=st.text(st.sampled_from("<>()[]{}:- &*~,oprato std::new"), max_size=60))
def test_any_name(function: str) -> None:
    """Names come from any file: whatever a name contains, some function is blamed."""
    assert blamed_frame([MALLOC, native(function), MAIN]) is not None


def test_a_long_name_costs_little() -> None:
    """Time grows with the length of a name, not with its square."""
    began = time.process_time()
    for name in (
        "(" * 4_096,
        "<" * 4_096,
        "operator" * 512,
        "std::f<" * 512,
        " " * 4_096,
        "a " * 2_048 + "(",
    ):
        blamed_frame([native(name)])
    assert time.process_time() - began < 1


def test_a_python_function_is_charged_with_what_its_interpreter_allocates():
    """Before extensions and C libraries that it calls, and before the interpreter's own library."""
    stack = [
        native("malloc", "libc.so.6"),
        native("CRYPTO_malloc", "libcrypto.so.3"),
        native("new_context", "_ssl.cpython-311-x86_64-linux-gnu.so"),
        interpreted("create_default_context", "python3.11", "ssl.py:764"),
        interpreted("Client.connect", "shop", "shop.py:17"),
        interpreted("main", "shop", "shop.py:99"),
        native("_start", "python3.11"),
    ]
    assert blamed_frame(stack) == stack[4]
    assert blamed_frame([*stack[:4], stack[-1]]) == stack[3]
    unnamed = interpreted(None, None, None)
    assert blamed_frame([stack[0], unnamed, *stack[4:]]) == stack[4]


GREENLET = native("green_switch(_greenlet*)", "_greenlet.cpython-311-x86_64-linux-gnu.so")


@pytest.mark.parametrize(
    ("caller", "is_blamed"),
    [
        (GREENLET, True),
        (native("decode", "_core.abi3.so"), True),
        (native("run", "blender"), False),
        (interpreted("serve"), True),
    ],
)
def test_an_interpreter_whose_functions_are_not_known(caller: Frame, is_blamed: bool) -> None:
    """The extension that called it is to blame: greenlet has the functions of the program elsewhere."""
    inside = native(None, "python3.11")
    blamed = blamed_frame([MALLOC, inside, caller, native("Py_BytesMain", "python3.11")])
    assert blamed is (caller if is_blamed else inside)


XML = "libxml2.so.2.9.14"
INTERNAL = replace(native(None, XML), is_library=True)
READ_MEMORY = replace(native("xmlReadMemory", XML), is_library=True)
ORDER = native("order", "shop")


def test_the_internal_function_of_a_stripped_library() -> None:
    """The exported function says more; beyond the library's border, the code belongs to another module."""
    frames = [MALLOC, INTERNAL, READ_MEMORY, ORDER, MAIN]
    assert named_in_library(frames, INTERNAL) is READ_MEMORY
    assert named_in_library(frames, READ_MEMORY) is READ_MEMORY
    assert named_in_library([MALLOC, INTERNAL, ORDER, MAIN], INTERNAL) is INTERNAL
    other = replace(INTERNAL, module="libz.so.1")
    assert named_in_library([MALLOC, other, *frames[1:]], other) is READ_MEMORY
    own = native(None, "shop")
    assert named_in_library([MALLOC, own, MAIN], own) is own


def test_who_called_a_library() -> None:
    """The first function outside of libraries, runtimes and tools; none for the program's own code."""
    start = native("_start", "shop")
    template = native("std::function<void ()>::operator()() const", "shop")
    frames = [MALLOC, INTERNAL, READ_MEMORY, template, ORDER, MAIN, start]
    assert calling_frame(frames, READ_MEMORY) is ORDER
    assert calling_frame(frames, ORDER) is None
    assert calling_frame(frames, None) is None
    thread = [MALLOC, READ_MEMORY, native("start_thread", "libc.so.6"), native("clone3", "libc.so.6")]
    assert calling_frame(thread, READ_MEMORY) is None
    assert calling_frame([MALLOC, READ_MEMORY, start], READ_MEMORY) is None


def test_a_main_without_a_name_says_nothing() -> None:
    """`ruby` only starts the interpreter in its library. Functions of threads, and other callers, differ."""
    nameless = native(None, "ruby3.1")
    start = [native(None, "libc.so.6"), native("__libc_start_main", "libc.so.6"), native("_start", "ruby3.1")]
    frames = [MALLOC, READ_MEMORY, nameless]
    assert calling_frame([*frames, *start], READ_MEMORY) is None
    assert calling_frame([*frames, *start[1:]], READ_MEMORY) is None
    main = native("main", "shop")
    assert calling_frame([MALLOC, READ_MEMORY, main, *start], READ_MEMORY) is main
    assert calling_frame([*frames, native("start_thread", "libc.so.6")], READ_MEMORY) is nameless
    assert calling_frame([*frames, native(None, "ruby3.1"), *start], READ_MEMORY) is nameless


def test_who_called_a_package() -> None:
    """Not the interpreter's own library between them, nor the interpreter."""
    full = replace(interpreted("full", "numpy", "numeric.py:385"), is_library=True)
    stack = [
        MALLOC,
        native(None, "_multiarray_umath.cpython-311-x86_64-linux-gnu.so"),
        full,
        interpreted("wrapper", "python3.11", "functools.py:10"),
        interpreted("process", "shop", "shop.py:6"),
        native("Py_BytesMain", "python3.11"),
    ]
    assert blamed_frame(stack) is full
    assert calling_frame(stack, full) is stack[4]
    assert calling_frame([*stack[:3], stack[-1]], full) is None
