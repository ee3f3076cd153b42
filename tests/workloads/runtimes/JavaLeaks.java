// SPDX-License-Identifier: GPL-2.0-or-later
// Java services that leak, each in one way, or that do not: `java JavaLeaks WAY`. Nothing about them is prepared. With
// -DcollectEvery=N they request a full collection after N pauses of 5 ms, as programs do that use RMI.

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.zip.GZIPOutputStream;

public class JavaLeaks {
    /** What every request makes and nobody keeps. */
    static volatile Object garbage;

    static final class Order {
        final long number;
        final byte[] lines = new byte[200];

        Order(long number) {
            this.number = number;
        }
    }

    /** A map that only grows. */
    static final class Sessions {
        private static final Map<Long, Order> KNOWN = new HashMap<>();

        static void remember(long number) {
            KNOWN.put(number, new Order(number));
        }
    }

    /** Memory outside of the Java heap, by ByteBuffer. */
    static final class Buffers {
        private static final List<ByteBuffer> TAKEN = new ArrayList<>();

        static void take() {
            TAKEN.add(ByteBuffer.allocateDirect(10_007));
        }
    }

    /** Streams that are never closed, so that zlib keeps what it has for each. */
    static final class Archives {
        private static final List<GZIPOutputStream> OPEN = new ArrayList<>();

        static void open() throws IOException {
            OPEN.add(new GZIPOutputStream(new ByteArrayOutputStream(16)));
        }
    }

    /** The same, but nobody keeps the streams: a collection frees what zlib has. */
    static void openAndDrop() throws IOException {
        garbage = new GZIPOutputStream(new ByteArrayOutputStream(16));
    }

    /** What threads that never end keep for themselves. */
    static final class Workers {
        private static final ThreadLocal<List<Order>> DONE = ThreadLocal.withInitial(ArrayList::new);
        private static final ExecutorService POOL = Executors.newFixedThreadPool(2);

        static void work(long number) {
            DONE.get().add(new Order(number));
        }

        static void start(long number) {
            POOL.submit(() -> work(number));
        }
    }

    /** Classes that are loaded again and again, each time by a loader that is kept. */
    static final class Plugins {
        private static final List<ClassLoader> LOADERS = new ArrayList<>();

        private static final class Loader extends ClassLoader {
            Class<?> define(byte[] code) {
                return defineClass("JavaLeaks$Order", code, 0, code.length);
            }
        }

        static void load() throws IOException {
            Loader loader = new Loader();
            try (InputStream file = JavaLeaks.class.getResourceAsStream("JavaLeaks$Order.class")) {
                loader.define(file.readAllBytes());
            }
            LOADERS.add(loader);
        }
    }

    /** As much as a cache of bounded size takes. */
    static final class Cache {
        private static final ArrayDeque<Order> LAST = new ArrayDeque<>();

        static void look(long number) {
            LAST.add(new Order(number));
            if (LAST.size() > 4_000) {
                LAST.remove();
            }
        }
    }

    static void serve(String way, long number) throws IOException {
        garbage = new byte[way.equals("idle") || way.equals("slowly") || way.equals("dropped") ? 100 : 30_000];
        switch (way) {
            case "map": case "slowly": Sessions.remember(number); break;
            case "direct": if (number % 50 == 0) { Buffers.take(); } break;
            case "gzip": if (number % 200 == 0) { Archives.open(); } break;
            case "dropped": if (number % 50 == 0) { openAndDrop(); } break;
            case "threads": Workers.start(number); break;
            case "classes": if (number % 20 == 0) { Plugins.load(); } break;
            default: Cache.look(number);
        }
    }

    public static void main(String[] arguments) throws Exception {
        long pauses = Long.getLong("collectEvery", Long.MAX_VALUE / 10);
        System.out.println("ready");
        for (long number = 0; ; number++) {
            serve(arguments[0], number);
            if (number % 10 == 9) {
                Thread.sleep(5);
            }
            if (number % (10 * pauses) == 10 * pauses - 1) {
                System.gc();
            }
        }
    }
}
