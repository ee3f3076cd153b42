// SPDX-License-Identifier: GPL-2.0-or-later
// .NET services, by their first argument; each runs until it is killed:
//
//     dictionary   remembers orders in a dictionary, beside ten times as much garbage
//     healthy      the same garbage, and a cache of a fixed size whose entries are replaced
//     idle         allocates slowly, and is never collected
using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Shop
{
    public class Order
    {
        public int Id;
        public long Price, Tax, Shipping, Discount;
        public string Customer;
    }

    static class Sessions
    {
        static readonly Dictionary<int, Order> orders = new Dictionary<int, Order>();

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static void Remember(int id)
        {
            orders[id] = new Order { Id = id, Customer = "customer" };
        }
    }

    static class Program
    {
        static object last;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Render(int pages)
        {
            for (int i = 0; i < pages; i++)
                last = new string('x', 500);
        }

        static void Main(string[] arguments)
        {
            string what = arguments[0];
            int id = 0;

            Console.WriteLine("ready");
            while (true)
            {
                // 50 orders are 3 KB and as much of the dictionary; 60 pages are 60 KB.
                for (int i = 0; i < 50 && what != "idle"; i++, id++)
                    Sessions.Remember(what == "healthy" ? id % 20000 : id);
                Render(what == "idle" ? 1 : 60);
                GC.KeepAlive(last);
                Thread.Sleep(what == "idle" ? 1 : 2);
            }
        }
    }
}
