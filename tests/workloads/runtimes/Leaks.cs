// SPDX-License-Identifier: GPL-2.0-or-later
// A .NET program that leaks, at "run N":
//
//     run 1   1009 blocks of 10 KiB of a C library, by P/Invoke
//     run 2   256 mappings of 4 MiB of the same, some methods further in
//     run 3   23 blocks of 601 bytes of Marshal.AllocHGlobal
//     run 4   30 arrays of 3 MiB, of which the ledger notes what the run-time says: managed_bytes
//     run 5   101 assemblies of 3 names, dynamic methods and lambdas each, made and called
using System;
using System.Collections.Generic;
using System.Linq.Expressions;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Leaks
{
    static class Native
    {
        // SetLastError wants a stub between the caller and the function.
        [DllImport("leaks", EntryPoint = "heapmalloc", SetLastError = true)]
        public static extern int HeapMalloc(int bytes);

        [DllImport("leaks", EntryPoint = "mmap_allocation", SetLastError = true)]
        public static extern int MmapAllocation(int bytes);

        [DllImport("leaks", EntryPoint = "leaks_await")]
        public static extern int Await();

        [DllImport("leaks", EntryPoint = "leaks_note_managed")]
        public static extern void NoteManaged(double bytes);
    }

    static class Program
    {
        static readonly List<byte[]> kept = new List<byte[]>();
        static readonly List<Delegate> compiled = new List<Delegate>();

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MyTest(int blocks, int bytes)
        {
            for (int i = 0; i < blocks; i++)
                Allocate(bytes);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Allocate(int bytes)
        {
            if (Native.MmapAllocation(bytes) != 0)
                throw new OutOfMemoryException();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void KeepNative(int count, int bytes)
        {
            for (int i = 0; i < count; i++)
                Marshal.AllocHGlobal(bytes);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void KeepArrays(int count, int bytes)
        {
            for (int i = 0; i < count; i++)
            {
                var array = new byte[bytes];
                for (int j = 0; j < bytes; j += 4096)
                    array[j] = 1;
                kept.Add(array);
            }
        }

        // An assembly with a type that computes n.
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int RunGeneratedAssembly(int n)
        {
            var name = new AssemblyName("Generated" + n % 3);
            var type = AssemblyBuilder.DefineDynamicAssembly(name, AssemblyBuilderAccess.Run)
                .DefineDynamicModule("module")
                .DefineType("Template" + n, TypeAttributes.Public);
            var il = type.DefineMethod(
                "Render", MethodAttributes.Public | MethodAttributes.Static, typeof(int), Type.EmptyTypes)
                .GetILGenerator();

            il.Emit(OpCodes.Ldc_I4, n);
            il.Emit(OpCodes.Ret);
            return (int)type.CreateType().GetMethod("Render").Invoke(null, null);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int RunDynamicMethod(int n)
        {
            var method = new DynamicMethod("Dynamic" + n, typeof(int), Type.EmptyTypes);
            var il = method.GetILGenerator();

            il.Emit(OpCodes.Ldc_I4, n);
            il.Emit(OpCodes.Ret);
            var function = (Func<int>)method.CreateDelegate(typeof(Func<int>));
            compiled.Add(function);
            return function();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int RunCompiledLambda(int n)
        {
            var function = Expression.Lambda<Func<int>>(Expression.Constant(n)).Compile();
            compiled.Add(function);
            return function();
        }

        static void Expect(int expected, int actual)
        {
            if (expected != actual)
                throw new InvalidOperationException("the generated code is wrong");
        }

        static int Main()
        {
            for (int step; (step = Native.Await()) >= 0;)
            {
                switch (step)
                {
                    case 1:
                        for (int i = 0; i < 1009; i++)
                            Native.HeapMalloc(10 << 10);
                        break;
                    case 2:
                        MyTest(256, 4 << 20);
                        break;
                    case 3:
                        KeepNative(23, 601);
                        break;
                    case 4:
                        long before = GC.GetTotalMemory(true);

                        KeepArrays(30, 3 << 20);
                        Native.NoteManaged(GC.GetTotalMemory(true) - before);
                        break;
                    case 5:
                        for (int n = 0; n < 101; n++)
                        {
                            Expect(n, RunGeneratedAssembly(n));
                            Expect(n, RunDynamicMethod(n));
                            Expect(n, RunCompiledLambda(n));
                        }
                        break;
                }
            }
            return 0;
        }
    }
}
