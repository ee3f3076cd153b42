// SPDX-License-Identifier: GPL-2.0-or-later
// A Java program that leaks through JNI and through Unsafe. What it calls is warmed up until it is compiled.

import java.lang.reflect.Field;
import java.nio.file.Path;
import sun.misc.Unsafe;

public class Shop {
    private static final Unsafe UNSAFE = unsafe();
    private static boolean isServing;
    private static long last;

    private static native void keep(long bytes);
    private static native void turnOver(long bytes);
    private static native int serve();

    private static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private static void addToCart(long bytes) {
        keep(bytes);
    }

    private static void browse(long bytes) {
        turnOver(bytes);
    }

    /** 17 blocks outside of the Java heap, which nobody frees while the program serves. */
    private static void fillCache() {
        for (int i = 0; i < 17; i++) {
            last = UNSAFE.allocateMemory(808);
            if (!isServing) {
                UNSAFE.freeMemory(last);
            }
        }
    }

    private static void checkout() {
        for (int i = 0; i < 23; i++) {
            addToCart(601 + i);
        }
        for (int i = 0; i < 101; i++) {
            browse(53);
        }
        fillCache();
    }

    static void step(long number) {
        checkout();
    }

    public static void main(String[] arguments) {
        System.load(Path.of(arguments[0], "libjavasessions.so").toAbsolutePath().toString());
        for (int i = 0; i < 20_000; i++) {
            isServing = i % 1000 == 999; // so that neither branch is new when it serves
            checkout();
        }
        isServing = true;
        System.exit(serve());
    }
}
