// SPDX-License-Identifier: GPL-2.0-or-later
// A .NET program that leaks through P/Invoke: Main, into C, back into managed code, into C again.
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Shop
{
    static class Sessions
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        public delegate void Step(IntPtr number);

        [DllImport("sessions", EntryPoint = "session_keep")]
        public static extern void Keep(IntPtr bytes);

        [DllImport("sessions", EntryPoint = "session_turn_over")]
        public static extern void TurnOver(IntPtr bytes);

        [DllImport("sessions", EntryPoint = "sessions_serve")]
        public static extern int Serve(Step step);
    }

    class Cart
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public void Remember(int bytes)
        {
            Sessions.Keep(new IntPtr(bytes));
            GC.KeepAlive(this);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public void Browse(int bytes)
        {
            Sessions.TurnOver(new IntPtr(bytes));
            GC.KeepAlive(this);
        }
    }

    static class Program
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Checkout(string customer)
        {
            var cart = new Cart();

            for (int i = 0; i < 23; i++)
                cart.Remember(601 + i);
            for (int i = 0; i < 101; i++)
                cart.Browse(53);
            GC.KeepAlive(customer);
        }

        static int Main()
        {
            // List.ForEach is compiled ahead of time: code in a file, but in none that has unwind tables.
            var customers = new List<string> { "customer" };
            Sessions.Step step = number => customers.ForEach(Checkout);
            int code = Sessions.Serve(step);

            GC.KeepAlive(step);
            return code;
        }
    }
}
