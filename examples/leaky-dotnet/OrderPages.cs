// SPDX-License-Identifier: GPL-2.0-or-later
// A .NET service with two leaks, for docs/tutorial-dotnet.md: pages that never unsubscribe from an event, and
// pictures whose native memory is not freed when the article is sold out.
using System;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;

namespace Shop
{
    static class PriceFeed
    {
        public static event Action<decimal> Changed;

        public static void Publish(decimal price)
        {
            Changed?.Invoke(price);
        }
    }

    class OrderPage
    {
        readonly byte[] rendered = new byte[16 * 1024];

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static OrderPage Open()
        {
            var page = new OrderPage();

            PriceFeed.Changed += page.OnPriceChanged; // LEAK: never unsubscribed
            return page;
        }

        void OnPriceChanged(decimal price)
        {
            rendered[0]++;
        }
    }

    class Picture : IDisposable
    {
        IntPtr pixels;

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static Picture Decode(int bytes)
        {
            return new Picture { pixels = Marshal.AllocHGlobal(bytes) };
        }

        public void Dispose()
        {
            Marshal.FreeHGlobal(pixels);
            pixels = IntPtr.Zero;
        }
    }

    static class Program
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Statement(int order)
        {
            var text = new StringBuilder();

            for (int line = 0; line < 10; line++)
                text.Append("order ").Append(order).Append(", line ").Append(line).AppendLine();
            return text.ToString().Length;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void ShowPicture(int order)
        {
            var picture = Picture.Decode(3001);

            if (order % 3 == 0)
                return; // LEAK: sold out, and not disposed
            picture.Dispose();
        }

        static void Main()
        {
            for (int order = 0; ; order++)
            {
                OrderPage.Open();
                ShowPicture(order);
                Statement(order);
                if (order % 100 == 0)
                    PriceFeed.Publish(order);
                Thread.Sleep(10);
            }
        }
    }
}
