// SPDX-License-Identifier: GPL-2.0-or-later
// Allocates by JNI below many different stacks, and prints what the machine itself says of each: the size of the block,
// and the methods. Code is interpreted, compiled by C1 and C2, entered in the midst of a loop, inlined, and thrown away.

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

public class JavaStacks {
    interface Shape { int visit(int seed, int depth); }
    static final class Circle implements Shape { public int visit(int seed, int depth) { return JavaStacks.next(seed, depth) + 1; } }
    static final class Square implements Shape { public int visit(int seed, int depth) { return JavaStacks.next(seed, depth) + 2; } }
    static final class Star implements Shape {
        public int visit(int seed, int depth) {
            synchronized (new Object()) {
                return wide(seed, depth, 1L, 2.0, "star", 4, 5L);
            }
        }

        private int wide(int seed, int depth, long a, double b, String c, int d, long e) {
            int more = JavaStacks.next(seed, depth);
            return more + (int) (a + b + d + e) + c.length();
        }
    }

    private static final Shape[] SHAPES = {new Circle(), new Square(), new Star()};
    private static final List<String> TRACES = new ArrayList<>();
    private static int limit;
    private static boolean samples;
    private static int number;
    static int sink;

    static native void keep(long bytes);

    static void sample() {
        if (!samples) {
            return;
        }
        int size = 1000 + 16 * number++;
        StringBuilder trace = new StringBuilder().append(size);
        for (StackTraceElement frame : Thread.currentThread().getStackTrace()) {
            trace.append(' ').append(frame.getClassName()).append('.').append(frame.getMethodName());
            trace.append(':').append(frame.getLineNumber());
        }
        TRACES.add(trace.toString());
        keep(size);
    }

    static int next(int seed, int depth) {
        if (depth <= 0) {
            sample();
            return seed;
        }
        int way = Math.floorMod(seed, 9);
        int rest = seed / 9 + 7 * depth;
        switch (way) {
            case 0: return direct(rest, depth - 1);
            case 1: return SHAPES[Math.floorMod(rest, limit)].visit(rest, depth - 1);
            case 2: return byLambda(rest, depth - 1);
            case 3: return byStream(rest, depth - 1);
            case 4: return byLoop(rest, depth - 1);
            case 5: return byReflection(rest, depth - 1);
            case 6: return byException(rest, depth - 1);
            case 7: return small(rest, depth - 1);
            default: return byThread(rest, depth - 1);
        }
    }

    static int direct(int seed, int depth) { return next(seed, depth) ^ 1; }
    static int small(int seed, int depth) { return smaller(seed + 1, depth); }
    static int smaller(int seed, int depth) { return direct(seed + 1, depth); }

    static int byLambda(int seed, int depth) {
        IntUnaryOperator more = value -> next(value, depth) + seed;
        return more.applyAsInt(seed);
    }

    static int byStream(int seed, int depth) {
        return IntStream.range(0, 1).map(value -> next(seed + value, depth)).sum();
    }

    static int byLoop(int seed, int depth) {
        int sum = 0;
        for (int i = 0; i < 2000; i++) {
            sum += i ^ sum;
            if (i == 1999) {
                sum += next(seed, depth);
            }
        }
        return sum;
    }

    static int byReflection(int seed, int depth) {
        try {
            return (Integer) JavaStacks.class.getDeclaredMethod("direct", int.class, int.class).invoke(null, seed, depth);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static int byException(int seed, int depth) {
        try {
            if (Math.floorMod(seed, 2) == 0) {
                throw new IllegalArgumentException();
            }
            return next(seed, depth);
        } catch (IllegalArgumentException e) {
            return next(seed + 1, depth);
        }
    }

    static int byThread(int seed, int depth) {
        int[] result = new int[1];
        if (depth > 4) {
            Thread other = new Thread(() -> result[0] = next(seed, depth - 1));
            other.start();
            try {
                other.join();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
            return result[0];
        }
        return next(seed, depth);
    }

    static void turn(int count, Random random) {
        for (int i = 0; i < count; i++) {
            sink += next(random.nextInt() >>> 1, 2 + random.nextInt(6));
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.load(Path.of(arguments[0], "libjavastacks.so").toAbsolutePath().toString());
        int stacks = Integer.parseInt(arguments[1]);
        Random random = new Random(17);
        limit = 1;
        System.out.println("ready");
        System.in.read();
        // Interpreted, then ever better compiled; a class that was not there before throws code away.
        for (int part = 0; part < 10; part++) {
            if (part == 5 || part == 8) {
                limit++;
            }
            // So that whoever looks may have seen the code that there is.
            System.out.println("part");
            System.in.read();
            samples = true;
            turn(stacks / 10, random);
            samples = false;
            turn(part < 2 ? 30 : 1500, random);
        }
        for (String trace : TRACES) {
            System.out.println(trace);
        }
        System.out.println("done");
        System.out.flush();
        System.in.read();
        System.in.read();
    }
}
